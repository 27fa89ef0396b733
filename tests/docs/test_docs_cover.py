"""What the code has to offer is in the documentation: commands, options, policies, metrics, errors, cost keys."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pages import text_of

from equipoise import errors
from equipoise.cli.app import app
from equipoise.cost import from_toml
from equipoise.policies import spec
from equipoise.policies.registry import ALIASES, BUILT_IN
from equipoise.replay.layout import SERIES_COLUMNS
from equipoise.study import schema

META = ("--help", "-h", "--version")


def commands(command: Any = app, path: str = "equipoise") -> Iterator[tuple[str, Any]]:
    if command.default_command is not None and path != "equipoise":
        yield path, command
    for name in command:
        if name not in META:
            yield from commands(command[name], f"{path} {name}")


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option(path: str) -> None:
    page = text_of("reference/cli.md")
    assert f"## {path}\n" in page
    section = page.partition(f"## {path}\n")[2].partition("\n## ")[0]
    for argument in COMMANDS[path].assemble_argument_collection(parse_docstring=True):
        for name in argument.names:
            assert f"`{name}`" in section or f"`{name.upper()}`" in section, f"{path} {name}"
        assert " ".join((argument.parameter.help or "").split()) in section.replace("\\|", "|"), (
            path,
            argument.names,
        )


def test_the_commands_are_really_found() -> None:
    assert {"equipoise compare", "equipoise cost derive", "equipoise trace info"} <= set(COMMANDS)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_and_parameter(name: str) -> None:
    page = text_of("reference/policies.md")
    section = page.partition(f"## `{name}`")[2].partition("\n## ")[0]
    assert section, f"{name} has no section"
    found = spec(name)
    for parameter in found.parameters:
        assert f"| `{parameter.name}` |" in section, parameter.name
        for choice in parameter.choices:
            assert f"`{choice}`" in section
    for alias in (*found.aliases, *(a for a, full in ALIASES.items() if full == name and len(a) > 1)):
        assert f"`{alias}`" in section, alias
    rule = section.partition(f"<!-- /policy {name} -->")[2].strip()
    assert len(rule) > 60, f"the rule of {name} is not written"


def fields(part: Any, path: str = "") -> Iterator[str]:
    """Every key that the schema of the summary names, at any depth."""
    if isinstance(part, dict):
        for key, value in part.get("properties", {}).items():
            yield key
            yield from fields(value)
        for key in ("items", "anyOf", "$defs"):
            yield from fields(part.get(key))
    elif isinstance(part, list):
        for value in part:
            yield from fields(value)


def documented(page: str) -> set[str]:
    """Names in the first column of the tables of a page."""
    rows = re.findall(r"^\| (`[^|]*) \|", text_of(page), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_metric() -> None:
    names = documented("reference/metrics.md")
    percentiles = {"p50", "p90", "p95", "p99"}
    missing = set(fields(schema())) - names - percentiles
    assert not missing
    assert percentiles <= set(re.findall(r"\bp\d\d\b", text_of("reference/metrics.md")))


def test_every_column_of_the_result_files(tmp_path: Any) -> None:
    import polars as pl

    from equipoise.cost import load
    from equipoise.policies import parse
    from equipoise.replay import Pool
    from equipoise.study import ComparePlan, compare
    from equipoise.study.folder import write_data

    plan = ComparePlan(
        ["chat-short"],
        [load("v2")],
        [parse("least_batch")],
        Pool(ranks=2),
        mode="timed",
        requests=200,
        seeds=1,
    )
    write_data(compare(plan), tmp_path)
    page = text_of("reference/metrics.md")
    for name in ("steps", "requests"):
        section = page.partition(f"## `{name}.parquet`")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
        shown = [column for row in rows for column in re.findall(r"`([^`]+)`", row)]
        assert shown == list(pl.read_parquet(tmp_path / f"{name}.parquet").columns)
    assert set(SERIES_COLUMNS) <= documented("reference/metrics.md")


def test_every_file_of_a_result_folder(tmp_path: Any) -> None:
    page = text_of("howto/read-results.md")
    for name in (
        "summary.json",
        "steps.parquet",
        "requests.parquet",
        "config.resolved.toml",
        "environment.json",
    ):
        assert f"`{name}`" in page


def test_every_error_class_and_exit_code() -> None:
    page = text_of("reference/errors.md")
    classes = [getattr(errors, n) for n in errors.__all__ if isinstance(getattr(errors, n), type)]
    assert len(classes) >= 8
    for found in classes:
        assert re.search(rf"\| `{found.__name__}` \| `\w+` \| {found.exit_code} \|", page), found.__name__
    assert {"0", "1", "2", "130"} <= set(re.findall(r"^\| (\d+) \|", page, re.MULTILINE))


COST_EXAMPLES = re.findall(
    r"<!-- cost: ([\w-]+) -->\n```toml\n(.*?)```", text_of("reference/cost-files.md"), re.DOTALL
)


@pytest.mark.parametrize(("name", "text"), COST_EXAMPLES, ids=[n for n, _ in COST_EXAMPLES])
def test_cost_examples_load(name: str, text: str) -> None:
    cost = from_toml(text, name)
    assert cost.ideal([8, 24], [10_000, 90_000]) <= cost.cost([8, 24], [10_000, 90_000])


def test_every_key_of_a_cost_file() -> None:
    from dataclasses import fields as fields_of

    from equipoise.cost import Saturation, StepCost, Term

    names = documented("reference/cost-files.md")
    assert {f.name for f in fields_of(StepCost)} - {"metadata"} | {"schema"} <= names
    assert {f.name for f in fields_of(Term)} <= names
    page = text_of("reference/cost-files.md")
    assert all(f"`{f.name}`" in page for f in fields_of(Saturation))
    shown = "\n".join(text for _, text in COST_EXAMPLES)
    for key in ("constant", "batch_floor", "batch_table", "saturations", "barrier", "unit"):
        assert key in shown, f"no example with {key}"


def test_every_key_of_a_deployment_file() -> None:
    from dataclasses import fields as fields_of

    from equipoise.fleet.files import LISTS, TABLES, loads

    page = text_of("reference/deployment-files.md")
    for name, part in TABLES.items():
        title = f"[[{name}]]" if name in LISTS else f"[{name}]"
        section = page.partition(f"## `{title}`")[2].partition("\n## ")[0]
        for field in fields_of(part):
            row = re.search(rf"^\| `{field.name}` \| (.+) \| (.+) \| (.+) \|$", section, re.MULTILINE)
            assert row is not None, f"{title} {field.name}"
            assert all(len(cell) > 1 for cell in row.groups()), row
    for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL):
        assert loads(text).pool.instances == 2


def test_every_key_of_a_fit() -> None:
    from equipoise.calibrate.calibration import schema as fit_schema

    keys = set(fields(fit_schema())) - {
        "fits",
        "failed",
        "group",
        "reason",
        "name",
        "unit",
        "barrier",
        "source",
    }
    page = text_of("reference/fit-schema.md")
    in_cost_file = {"terms", "constant", "us_per_unit"}
    missing = {k for k in keys - in_cost_file if not re.search(rf"`(?:\w+\.)?{k}`", page)}
    assert not missing


def test_the_example_summary_fits_its_schema() -> None:
    import json

    jsonschema = pytest.importorskip("jsonschema")
    text = re.findall(r"```json\n(.*?)```", text_of("reference/summary-schema.md"), re.DOTALL)[0]
    jsonschema.validate(json.loads(text), schema())


PUBLIC = (
    *(
        "replay",
        "cost",
        "models",
        "traces",
        "policies",
        "policies.api",
        "study",
        "study.tune",
        "report",
        "fleet",
    ),
    *("calibrate", "calibrate.readers", "control", "router", "engines", "serve", "serve.envoy", "live"),
    "engines.verify",
)


@pytest.mark.parametrize("room", [*PUBLIC, "types", "errors"])
def test_every_public_name(room: str) -> None:
    names = importlib.import_module(f"equipoise.{room}").__all__
    page = text_of("reference/python-api.md")
    missing = [n for n in names if f"::: equipoise.{room}.{n}\n" not in page]
    # what a room only hands on is documented where it lives
    missing = [n for n in missing if not re.search(rf"^::: equipoise\.[\w.]+\.{n}$", page, re.MULTILINE)]
    assert missing == []


def test_documented_names_exist() -> None:
    for path in re.findall(r"^::: ([\w.]+)$", text_of("reference/python-api.md"), re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


def test_every_setting_and_reason_of_the_router() -> None:
    from dataclasses import fields as fields_of

    from equipoise.router import HARMLESS, STATUS, AbortReason, InstanceState, PlaceReason, Rung, Settings

    page = text_of("reference/router-settings.md")
    for field in fields_of(Settings):
        value = getattr(Settings(), field.name)
        row = re.search(rf"^\| `{field.name}` \| (.+) \| (.+) \|$", page, re.MULTILINE)
        assert row is not None, field.name
        shown = row[1].strip("`").replace("'", '"')
        number = isinstance(value, int | float) and not isinstance(value, bool)
        assert float(shown.replace(",", "")) == value if number else shown == repr(value).replace("'", '"')
    for reason, status in STATUS.items():
        assert f"| `{reason}` | {status} |" in page
    for words in (AbortReason, InstanceState, PlaceReason, Rung):
        assert all(f"| `{word}` | " in page for word in words)
    assert all(f"`{word}`" in page for word in HARMLESS)
    documented = Settings.__doc__ or ""
    assert all(re.search(rf"\b{field.name}\b", documented) for field in fields_of(Settings))


def test_glossary_has_the_words() -> None:
    page = text_of("reference/glossary.md").lower()
    words = """dp rank;instance;pool;group;step;straggler;bubble;batch;context_tokens;query_tokens;kv_capacity_tokens;
    max_batch;ttft;tpot;itl;isl;osl;goodput;slo;cost;ideal;excess;balance;exchange rate;term;barrier"""
    for word in words.split(";"):
        assert re.search(rf"^[*]*`?.*\b{re.escape(word.strip())}\b.*\n:   ", page, re.MULTILINE), word
