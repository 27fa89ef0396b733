"""The code of the tutorials and how-to guides runs, in the order of each page, on small inputs.

Blocks run unless a comment ``<!-- not run: why -->`` stands above them. A block with a title is a file. Commands that
replay are made small: fewer ranks, requests and seeds than the page says. What a command prints is compared where the
page shows it and nothing was made smaller; ``...`` stands for anything.
"""

from __future__ import annotations

import ast
import contextlib
import io
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from pages import DOCS, Block, blocks

from equipoise.cli.app import main

OTHERS = {"derive-a-cost.md", "bring-your-trace.md"}
"""Guides with tests of their own."""
PAGES = sorted([*DOCS.glob("tutorial/*.md"), *(p for p in DOCS.glob("howto/*.md") if p.name not in OTHERS)])
WITH_REPORT = {"first-study.md", "policy-laboratory.md"}
"""Reports take seconds, so two pages write them."""
SWITCHES = {"--json", "--no-report", "--report", "--quiet", "--list", "--oracle"}


def small(arguments: list[str], page: str) -> list[str]:
    """A command that replays, on a pool of a few ranks; of a deployment, which has its own, a short run."""
    options = dict(_pairs(arguments[1:]))
    if arguments[0] == "simulate" or "--deployment" in options:
        if not {"--list", "--show"} & set(options):
            options["--requests"], options["--seeds"] = ["1000"], ["1"]
            options["--warmup-turnovers"] = ["0"]
        if "--timeline-window" in options:
            options["--timeline-window"] = ["1:1.1"]
        return _words(arguments[0], options)
    if arguments[0] == "control":
        options |= {"--ranks": ["4"], "--load-per-rank": ["4"], "--seeds": ["1"]}
        return _words(arguments[0], options | {"--steps": ["4"], "--warmup-steps": ["2"]})
    instances = min(int(_last(options.get("--instances", ["1"]))), 10)
    ranks = 2 if instances > 1 else 4
    concurrency = instances * ranks * 4
    options["--ranks"], options["--concurrency"] = [str(ranks)], [str(concurrency)]
    options["--requests"], options["--seeds"] = [str(15 * concurrency)], ["2"]
    if "--refinements" in options or arguments[0] == "tune":
        options["--refinements"] = ["2"]
    if arguments[0] == "ceiling" or "--oracle" in options:
        options["--oracle-budget"] = ["2000"]
    if arguments[0] == "compare" and page not in WITH_REPORT:
        options["--no-report"] = []
    return _words(arguments[0], options)


def _words(command: str, options: dict[str, list[str]]) -> list[str]:
    shrunk = [command]
    for name, values in options.items():
        shrunk += values if name == "" else [name] if not values else [t for v in values for t in (name, v)]
    return shrunk


def _pairs(arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Options with all their values; positional arguments stand under the empty name."""
    found: dict[str, list[str]] = {}
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("--"):
            found.setdefault("", []).append(word)
        elif word in SWITCHES:
            found[word] = []
        else:
            found.setdefault(word, []).append(next(rest))
    return iter(found.items())


def _last(values: list[str]) -> str:
    return values[-1]


def run_command(line: str, page: str) -> tuple[str | None, int]:
    """Run one shell line; what it printed (None where it was made smaller) and its exit code."""
    words, _, target = line.partition(" > ")
    arguments = shlex.split(words)
    if arguments[0] != "equipoise":
        return run_other(arguments), 0
    shrunk = arguments[1] in ("compare", "ceiling", "tune", "simulate", "control")
    arguments = small(arguments[1:], page) if shrunk else arguments[1:]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    assert code == 0, f"{line}: exit code {code}: {err.getvalue()}"
    if target:
        Path(target).write_text(out.getvalue(), encoding="utf-8")
        return None, code
    return None if shrunk else out.getvalue(), code


def run_other(arguments: list[str]) -> None:
    """``python FILE`` in this process, anything else that begins with ``python`` in another."""
    assert arguments[0] == "python", f"mark what the tests cannot run: {arguments}"
    if arguments[1].endswith(".py"):
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(arguments[1], run_name="__main__")
        return
    done = subprocess.run([sys.executable, *arguments[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run_console(block: Block, page: str) -> None:
    """All commands of a block, each with what should follow it."""
    command, expected = "", []
    for line in [*block.body.replace(" \\\n", " ").splitlines(), "$ "]:
        if not line.startswith("$ "):
            expected.append(line.rstrip())
            continue
        if command:
            printed, _ = run_command(command, page)
            if expected:
                assert printed is not None, f"{page}: {command}: shows output that cannot be checked"
                assert matches(printed, expected), f"{page}: {command} prints\n{printed}"
        command, expected = line.removeprefix("$ "), []


def matches(printed: str, expected: list[str]) -> bool:
    """Whether lines are as expected, ``...`` standing for any number of them."""
    pattern = "\n".join("*" if line == "..." else _literal(line) for line in expected)
    return fnmatchcase("\n".join(line.rstrip() for line in printed.rstrip("\n").splitlines()), pattern)


def _literal(line: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.mark.proof
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_the_code_of_a_page_runs(page: Path, folder: Path) -> None:
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        if not block.runs:
            continue
        if block.title is not None:
            (folder / block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "console":
            run_console(block, page.name)
        elif block.language == "python":
            code = compile("\n" * block.line + block.body, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, namespace)


def test_the_example_is_the_file_of_the_page() -> None:
    """But for docstrings, which a page does not need."""
    (shown,) = (b.body for b in blocks("howto/policy-laboratory.md") if b.title == "longest_first.py")
    shipped = (DOCS.parent / "examples" / "longest_first.py").read_text(encoding="utf-8")
    lines = ast.unparse(_without_docstrings(ast.parse(shipped)))
    assert lines == ast.unparse(ast.parse(shown))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


def test_pages_are_found_and_do_something() -> None:
    assert len(PAGES) >= 10
    others = ("index.md", "in-engine.md")  # the second is about what runs inside an engine
    idle = [p.name for p in PAGES if p.name not in others and not any(b.runs for b in blocks(p))]
    assert idle == []


def test_a_wrong_output_would_be_noticed() -> None:
    assert matches("a\nb [1]\nc\n", ["a", "...", "c"])
    assert matches("a\nb [1]\n", ["a", "b [1]"])
    assert not matches("a\nb\n", ["a", "c"])
    assert not matches("a\nb\n", ["a"])


def test_commands_are_made_small() -> None:
    line = "compare --policy A --policy B --ranks 64 --seeds 9 --json"
    assert small(shlex.split(line), "x.md") == shlex.split(
        "compare --policy A --policy B --ranks 4 --seeds 2 --json --concurrency 16 --requests 240 --no-report"
    )
