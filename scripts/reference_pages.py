"""Write the parts of the reference that the code knows best: commands, policies, errors.

Usage: ``python scripts/reference_pages.py`` rewrites the pages, ``--check`` only says whether they are up to date.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import App

import serve_tables
from deployment_tables import TABLES, table_of
from equipoise import errors
from equipoise.cli.app import app
from equipoise.policies import PolicySpec, spec
from equipoise.policies.registry import ALIASES, BUILT_IN
from markers import DOCS, replace

SCRIPT = Path(__file__).name
META = ("--help", "-h", "--version")


def walk(command: App = app, path: tuple[str, ...] = ("equipoise",)) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command that can be called, with the words that call it."""
    if command.default_command is not None and path != ("equipoise",):
        yield path, command
    for name in command:
        if name not in META:
            yield from walk(command[name], (*path, name))


def arguments(command: App) -> Iterator[Any]:
    """The arguments and options of a command, as cyclopts understands them."""
    yield from command.assemble_argument_collection(parse_docstring=True)


def commands() -> str:
    """One section a command: usage, what it does, its arguments and options."""
    return "\n\n".join(_command(path, command) for path, command in walk())


def _command(path: tuple[str, ...], command: App) -> str:
    positional = [a for a in arguments(command) if not _is_option(a)]
    options = [a for a in arguments(command) if _is_option(a)]
    usage = [*path, *(_positional(a) for a in positional)]
    usage += [f"{a.names[0]} {_value(a)}".strip() for a in options if a.required]
    parts = [f"## {' '.join(path)}", f"```text\n{' '.join(usage)} [OPTIONS]\n```", _prose(command)]
    rows = [[_names(a), _value(a), _default(a), _text(a)] for a in (*positional, *options)]
    parts.append(_table(["option", "value", "default", "meaning"], rows))
    return "\n\n".join(part for part in parts if part)


def _is_option(argument: Any) -> bool:
    return argument.field_info.kind is inspect.Parameter.KEYWORD_ONLY


def _positional(argument: Any) -> str:
    word = _plain_name(argument)
    return word if argument.required else f"[{word}]"


def _plain_name(argument: Any) -> str:
    return str(argument.field_info.name).upper().replace("_", "-")


def _names(argument: Any) -> str:
    names = argument.names if _is_option(argument) else [_plain_name(argument)]
    return ", ".join(f"`{name}`" for name in names)


def _value(argument: Any) -> str:
    hint = argument.hint
    kinds = [a for a in get_args(hint) if a is not type(None)] if get_origin(hint) is not Literal else [hint]
    kind = kinds[0] if kinds and get_origin(hint) not in (tuple, list) else hint
    many = get_origin(kind) in (tuple, list)
    kind = get_args(kind)[0] if many else kind
    if get_origin(kind) is Literal:
        word = " or ".join(f"`{c}`" for c in get_args(kind))
    else:
        word = {bool: "flag", int: "whole number", float: "number", str: "text", Path: "path"}[kind]
    return f"{word}, repeatable" if many else word


def _default(argument: Any) -> str:
    if argument.required:
        return "required"
    value = argument.field_info.default
    if value is None or value is inspect.Parameter.empty or value in ((), []):
        return ""
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, tuple | list):
        return ", ".join(f"`{v}`" for v in value)
    return f"`{value}`"


def _text(argument: Any) -> str:
    return " ".join((argument.parameter.help or "").split())


def _prose(command: App) -> str:
    """The docstring of the function behind a command, without its parameters."""
    text = inspect.cleandoc(command.default_command.__doc__ or "")
    return text.partition("\nParameters\n")[0].strip()


def _table(head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def policy(name: str) -> str:
    """What the registry says of a policy."""
    found: PolicySpec = spec(name)
    also = sorted({*found.aliases, *(a for a, full in ALIASES.items() if full == name and len(a) > 1)})
    facts = [f"- **Rule:** {found.summary}."]
    facts += [f"- **Also called:** {', '.join(f'`{a}`' for a in also)}."] if also else []
    facts += [f"- **Source:** {found.source}."]
    if not found.parameters:
        return "\n".join([*facts, "- No parameters."])
    parameters = [[f"`{p.name}`", _shown(p.default), _bounds(p), p.description] for p in found.parameters]
    return "\n".join(facts) + f"\n\n{_table(['parameter', 'default', 'values', 'meaning'], parameters)}"


def _shown(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bounds(parameter: Any) -> str:
    if parameter.choices:
        return " or ".join(f"`{c}`" for c in parameter.choices)
    if isinstance(parameter.default, bool):
        return "`true` or `false`"
    kind = "whole number" if parameter.integer else "number"
    return " or ".join(
        [f"{kind}, {parameter.low:g} to {parameter.high:g}", *(f"`{w}`" for w in parameter.words)]
    )


def policy_list() -> str:
    """All built-in policies in one table."""
    rows = [
        [f"[`{n}`](#{n})", ", ".join(f"`{a}`" for a in spec(n).aliases), spec(n).summary] for n in BUILT_IN
    ]
    return _table(["policy", "also", "rule"], rows)


def error_classes() -> str:
    """The tree of errors, with exit codes."""
    rows = []
    for found in error_tree():
        meaning = " ".join(inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0].split())
        parent = found.__bases__[0].__name__
        rows.append([f"`{found.__name__}`", f"`{parent}`", str(found.exit_code), meaning])
    return _table(["class", "derives from", "exit code", "meaning"], rows)


def error_tree(
    root: type[errors.EquipoiseError] = errors.EquipoiseError,
) -> Iterator[type[errors.EquipoiseError]]:
    """An error class and all that derive from it in `equipoise.errors`, parents first."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from error_tree(child)


def pages() -> dict[Path, str]:
    """Every page with generated parts, as it should read."""
    reference = DOCS / "reference"
    parts = {
        reference / "cli.md": {"commands": commands},
        reference / "policies.md": {
            "list": policy_list,
            **{f"policy {name}": lambda name=name: policy(name) for name in BUILT_IN},
        },
        reference / "errors.md": {"classes": error_classes},
        reference / "deployment-files.md": {
            f"table {name}": lambda name=name: _table(
                ["key", "value", "default", "meaning"], list(table_of(name))
            )
            for name in TABLES
        },
        reference / "serve-options.md": {
            f"keys {name}": lambda name=name: _table(
                ["key", "default", "meaning"], serve_tables.keys_of(name)
            )
            for name in serve_tables.KEYS
        },
        reference / "http-api.md": {
            f"fields {name}": lambda name=name: _table(
                ["field", "value", "default", "meaning"], serve_tables.fields_of(name)
            )
            for name in serve_tables.FIELDS
        },
        reference / "router-metrics.md": {
            f"metrics {name}": lambda name=name: _table(
                ["metric", "kind", "labels", "meaning"], serve_tables.metrics_of(name)
            )
            for name in serve_tables.METRICS
        },
    }
    fresh = {}
    for path, bodies in parts.items():
        text = path.read_text("utf-8")
        for title, body in bodies.items():
            text = replace(text, title, SCRIPT, body())
        fresh[path] = text
    return fresh


def main() -> int:
    """Rewrite the pages, or check them."""
    stale = {path: text for path, text in pages().items() if path.read_text("utf-8") != text}
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.name} is out of date: run python scripts/{SCRIPT}", file=sys.stderr)
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
