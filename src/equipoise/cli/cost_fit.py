"""`equipoise cost fit`: from an engine's log or a measured table to a step cost with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Json, Many, Quiet, check_folder, default_jobs, split
from equipoise.errors import InputError

if TYPE_CHECKING:
    from equipoise.calibrate.records import StepRecords
    from equipoise.models import ModelShape

__all__ = ["fit"]

Switch = Annotated[bool, Parameter(negative="")]

MOST = 1_000_000


def fit(
    files: Annotated[tuple[Path, ...], Parameter(required=True)],
    /,
    *,
    format: str | None = None,
    columns: Many = (),
    kv_capacity_tokens: Whole | None = None,
    decode_log_interval: Whole = 40,
    skip_bad: Whole = 0,
    without_context: Switch = False,
    partial: Switch = False,
    name: str | None = None,
    model: str | None = None,
    barrier: Literal["layer", "step"] = "layer",
    batch_shape: Literal["auto", "linear", "roofline", "table", "staircase"] = "auto",
    saturation_tokens: str = "auto",
    min_context: Whole | None = None,
    max_batch: Whole | None = None,
    warmup_steps: Whole = 0,
    missing_ranks_are_idle: Switch = False,
    group: Many = (),
    list_groups: Switch = False,
    block_tokens: Whole = 64,
    tune: bool = True,
    tune_trace: str = "agentic-coding",
    ranks: Whole = 64,
    seed: Whole = 0,
    output: Path | None = None,
    output_dir: Path | None = None,
    report: bool = True,
    jobs: Whole | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a step cost to what an engine logged, or to a measured table, with error bars.

    Files of one deployment (a log a rank, a log a worker) are fitted together. The format is told from the
    content.

    Parameters
    ----------
    files
        Step logs or measured tables, plain, gzip or zstd.
    format
        The format, where it is not told from the content: fpm, sglang_log, vllm_log, trtllm_metrics,
        trtllm_log, vllm_bench_forward, sglang_loads, deepinfer_log, aic or columns.
    columns
        Which column holds what, such as batch=n_running,context_tokens=kv,time_ms=lat. Commas or repeated.
    kv_capacity_tokens
        Tokens that fit into the KV cache of a rank, for logs that give only its use in percent.
    decode_log_interval
        Decode steps from one line of an SGLang log to the next.
    skip_bad
        Bad lines tolerated.
    without_context
        Accept a log that has no context lengths.
    partial
        Accept data that cannot tell what a request or what context costs, such as a log with one batch only.
    name
        Name of the cost, where one group is fitted. Default: the labels of the group, or the name of the file.
    model
        The model that ran, a preset or a config.json: its own top-k and window lengths are tried as
        saturations.
    barrier
        layer: layer classes wait one by one; step: one wait a step.
    batch_shape
        Shape of the price of a batch; auto takes the simplest that the held-out error supports.
    saturation_tokens
        Context length from which a second context price stops growing: auto, none or tokens.
    min_context
        Leave out steps with fewer context tokens a request. Default: 2048 for AIConfigurator's tables, else 0.
    max_batch
        Leave out steps with more requests on a rank. Default: 512 for AIConfigurator's tables, else no bound.
    warmup_steps
        Decode steps left out at the start of every instance.
    missing_ranks_are_idle
        Take ranks that are missing from a step as idle.
    group
        Fit only groups of a table with this label, such as system=h200*; * stands for anything. Repeatable:
        several values of one label are alternatives.
    list_groups
        Name the groups of a table and fit none.
    block_tokens
        Tokens of a KV block, for Dynamo's request weight.
    tune
        Find the best DualPath z by replay, where one group is fitted; --no-tune does not.
    tune_trace
        The trace of these replays, a preset or a file.
    ranks
        DP ranks in these replays.
    seed
        Of the bootstrap and of the replays.
    output
        Write the cost to this TOML file; for one group.
    output_dir
        Write fit.toml, fit.json, fit.html and fit.png there; of several groups a TOML file each.
    report
        With --no-report no page and no plots are written.
    jobs
        Replays at a time; one a processor by default.
    """
    from equipoise.calibrate.calibration import summarize
    from equipoise.cli.cost_fit_run import fit_all, need_libraries, note, with_z, write

    _check_targets(output, output_dir)
    for option, value, low in (
        ("--min-context", min_context, 0),
        ("--max-batch", max_batch, 1),
        ("--warmup-steps", warmup_steps, 0),
        ("--block-tokens", block_tokens, 1),
        ("--ranks", ranks, 1),
        ("--seed", seed, 0),
    ):
        if value is not None and not low <= value <= MOST:
            raise InputError(f"{option[2:]} = {value}", where=option, fix=f"must be from {low} to {MOST:,}")
    saturation = _saturation(saturation_tokens)
    shape = None if model is None else _shape(model)
    parts = _read(
        files,
        format,
        columns=_columns(columns),
        kv_capacity_tokens=kv_capacity_tokens,
        decode_log_interval=decode_log_interval,
        without_context=without_context,
        skip_bad=skip_bad,
    )
    parts = _selected(parts, group)
    if list_groups:
        _print_groups(parts, as_json)
        return
    if output is not None and len(parts) > 1:
        fix = "pick one with --group, or use --output-dir"
        raise InputError(f"{len(parts)} groups for one file", where="--output", fix=fix)
    if name is not None and len(parts) > 1:
        raise InputError(f"{len(parts)} groups for one name", where="--name", fix="pick one with --group")
    if output_dir is not None and report:
        need_libraries()
    options: dict[str, Any] = {
        "model": shape,
        "barrier": barrier,
        "batch_shape": batch_shape,
        "saturation_tokens": saturation,
        "min_context": "auto" if min_context is None else min_context,
        "max_batch": "auto" if max_batch is None else max_batch,
        "warmup_steps": warmup_steps,
        "missing_ranks_are_idle": missing_ranks_are_idle,
        "seed": seed,
    }
    silent = quiet or as_json
    if len(parts) == 1:
        options["name"] = name or (None if parts[0].labels.get("layer") else _stem(files[0]))
    found, failed = fit_all(parts, options, block_tokens, partial, silent)
    if tune and len(found) == 1:
        found = [with_z(found[0], tune_trace, ranks, seed, default_jobs(jobs), silent)]
    if output_dir is not None:
        write(found, failed, output_dir, report)
    if output is not None:
        found[0].save(output)
        note(f"wrote {output}")
    if as_json:
        import json

        print(json.dumps(summarize(found, failed), indent=2, allow_nan=False, ensure_ascii=False))
        return
    from rich.console import Console

    from equipoise.cli.cost_fit_tables import print_fit, print_fits

    console = Console(highlight=False)
    if len(found) == 1:
        print_fit(found[0], console)
    else:
        print_fits(found, console)


def _read(files: Sequence[Path], format: str | None, **options: Any) -> list[StepRecords]:
    from equipoise.calibrate.readers import read

    return read(files, format, **options)


def _selected(parts: list[StepRecords], group: Sequence[str]) -> list[StepRecords]:
    from equipoise.calibrate.groups import select

    wanted: dict[str, list[str]] = {}
    for text in group:
        label, equals, value = text.partition("=")
        if not equals or not label.strip() or not value.strip():
            raise InputError(f"{text!r} is no label=value", where="--group", fix="such as system=h200_sxm")
        wanted.setdefault(label.strip(), []).append(value.strip())
    return select(parts, wanted)


def _print_groups(parts: Sequence[StepRecords], as_json: bool) -> None:
    if as_json:
        import json

        groups = [{"group": dict(p.labels), "rows": len(p)} for p in parts]
        print(json.dumps({"schema": "equipoise.fit-groups/1", "groups": groups}, indent=2))
        return
    from rich.console import Console

    from equipoise.cli.cost_fit_tables import print_groups

    print_groups([(p.labels, len(p)) for p in parts], Console(highlight=False))


def _check_targets(output: Path | None, output_dir: Path | None) -> None:
    """What can be said before the work, not after it."""
    if output is not None:
        if not output.name or output.is_dir():
            raise InputError(
                f"{str(output)!r} is a folder", where="--output", fix="name a file, such as fit.toml"
            )
        if not output.parent.is_dir():
            raise InputError(
                f"there is no folder {str(output.parent)!r}", where="--output", fix="make it first"
            )
        if output.suffix.lower() != ".toml":
            fix = "end it in .toml: costs are read by that name"
            raise InputError(f"{output.name!r} is no TOML file", where="--output", fix=fix)
    if output_dir is not None:
        check_folder(output_dir)


def _columns(values: Sequence[str]) -> dict[str, str] | None:
    if not values:
        return None
    found = {}
    for pair in split(values, "--columns"):
        target, equals, column = pair.partition("=")
        if not equals or not target.strip() or not column.strip():
            fix = "such as batch=n_running,time_ms=latency"
            raise InputError(f"{pair!r} is no target=column", where="--columns", fix=fix)
        found[target.strip()] = column.strip()
    return found


def _saturation(text: str) -> int | Literal["auto"] | None:
    if text == "auto":
        return "auto"
    if text == "none":
        return None
    if text.isdecimal() and 1 <= int(text) <= 100_000_000:
        return int(text)
    fix = "use auto, none, or a number of tokens such as 2048"
    raise InputError(f"{text[:40]!r} is no context length", where="--saturation-tokens", fix=fix)


def _stem(path: Path) -> str:
    """Name of a file without its endings."""
    return path.name.partition(".")[0] or "fitted"


def _shape(model: str) -> ModelShape:
    from equipoise import models

    path = Path(model)
    if path.suffix == ".json" or path.is_dir():
        return models.from_config(path)
    return models.load(model)
