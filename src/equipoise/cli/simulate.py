"""`equipoise simulate`: a whole deployment under a trace."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Json, Many, Quiet, check_folder, costs_from, default_jobs, split
from equipoise.cli.progress import progress
from equipoise.errors import InputError, nearest

if TYPE_CHECKING:
    from equipoise.fleet import Deployment
    from equipoise.fleet.classes import By
    from equipoise.study import ComparePlan
    from equipoise.study.simulation import Simulated

__all__ = ["app"]

app = App(name="simulate")

POLICIES = ("least_batch", "least_tokens", "dualpath", "equipoise")
CLASSES = ("context", "output", "turn")


@app.default
def simulate(
    *,
    deployment: str = "dp64",
    trace: str = "agentic-coding",
    policy: Many = POLICIES,
    cost: str = "h200",
    mode: Literal["timed", "sessions", "saturated"] = "timed",
    load_per_rank: float | None = None,
    concurrency: Whole | None = None,
    rate_per_s: float | None = None,
    rate_scale: float | None = None,
    requests: Whole | None = None,
    seeds: Whole = 1,
    seed: Whole = 0,
    slo_ttft_ms: float | None = None,
    slo_tpot_ms: float | None = None,
    by: Many = (),
    group_policy: Literal["least_batch", "least_tokens"] = "least_batch",
    us_per_unit: float | None = None,
    warmup_turnovers: float = 1.0,
    output_dir: Path | None = None,
    timeline_window: str | None = None,
    list_: Annotated[bool, Parameter(name="--list", negative="")] = False,
    show: str | None = None,
    jobs: Whole | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a deployment: prefill, transfer, queues, memory, faults, and all that a step costs.

    Without options: one instance of 64 ranks, experts and communication in its step, under agentic-coding requests at
    a load its KV caches hold, placed by four policies.

    Parameters
    ----------
    deployment
        A preset (--list names them) or a TOML file.
    trace
        A trace file or folder, or a preset ('equipoise trace formats' lists both).
    policy
        A policy with its parameters, such as dualpath,z=1.2 or ./mine.py:place. Repeatable.
    cost
        A step cost: a measured preset (equipoise cost list), v1, v2, MODEL:v1, MODEL:v2 or a file.
    mode
        timed follows the arrival times; sessions sends the later turns of a conversation when the one before has
        ended; saturated keeps the pool full.
    load_per_rank
        Requests running on a rank, about: arrivals are scaled to it. Default: what the KV caches hold, 32 at most.
    concurrency
        The same for the whole pool.
    rate_per_s
        Arrivals a second, instead of a load.
    rate_scale
        Arrivals come this many times as fast as recorded; of a load or rate, this multiple.
    requests
        Requests of a run; a short trace is cycled. Default: enough to turn the pool over 20 times.
    seeds
        Runs a policy, each with other requests; all policies see the same ones.
    seed
        The first seed.
    slo_ttft_ms
        For goodput, in place of the deployment's: first token within so many milliseconds.
    slo_tpot_ms
        For goodput: and then a token every so many milliseconds at most.
    by
        Latencies by class of request, too: context, output or turn. Commas or repeated.
    group_policy
        How a group, or an instance that owns itself, is chosen.
    us_per_unit
        Microseconds per unit of the cost.
    warmup_turnovers
        Steps count once finished requests reach this many times the peak of running ones.
    output_dir
        Write every run there, into a folder a policy and seed if there are several: summary, Parquet, AIPerf blocks.
    timeline_window
        Seconds from and to, such as 10:12: draw the ranks in that time for Perfetto into the output folder.
    list_
        List the presets.
    show
        Print a preset's file, comments and all: a start for your own.
    jobs
        Runs at a time; one a processor by default.
    """
    if list_ or show is not None:
        _presets(show)
        return
    window = None if timeline_window is None else _window(timeline_window)
    if output_dir is not None:
        check_folder(output_dir)
    elif window is not None:
        raise InputError("nowhere to draw to", where="--timeline-window", fix="add --output-dir")
    chosen = _classes(by)
    from equipoise.policies import parse
    from equipoise.study import ComparePlan
    from equipoise.study.simulation import simulate_all

    costs = costs_from([cost], us_per_unit)
    if len(costs) != 1:
        raise InputError(f"{cost!r} names {len(costs)} costs", where="--cost", fix="name one")
    loaded = load_per_rank is not None or concurrency is not None or rate_per_s is not None
    plan = ComparePlan(
        traces=[trace],
        costs=costs,
        policies=[parse(text) for text in policy],
        group_policies=[group_policy],
        mode=mode,
        concurrency=concurrency,
        requests=requests,
        seeds=seeds,
        first_seed=seed,
        rate_scale=1.0 if rate_scale is None else rate_scale,
        warmup_turnovers=warmup_turnovers,
        load_per_rank=load_per_rank,
        as_recorded=rate_scale is not None and not loaded,
        rate_per_s=rate_per_s,
        deployments={deployment: _deployment(deployment, slo_ttft_ms, slo_tpot_ms)},
    )
    with progress("simulate", "runs", quiet=quiet or as_json) as tick:
        found = simulate_all(plan, jobs=default_jobs(jobs), progress=tick)
    if not (quiet or as_json):
        _say_load(found)
    if output_dir is not None:
        _write(plan, found, output_dir, chosen, window)
    if as_json:
        _print_json(found, deployment, chosen)
    else:
        from rich.console import Console

        from equipoise.report.fleet_tables import print_simulated

        print_simulated(found, Console(), by=chosen)


def _deployment(name: str, ttft_ms: float | None, tpot_ms: float | None) -> Deployment:
    from equipoise.fleet import Slo
    from equipoise.fleet.files import load

    found = load(name)
    slo = Slo(
        found.slo.ttft_ms if ttft_ms is None else ttft_ms,
        found.slo.tpot_ms if tpot_ms is None else tpot_ms,
    )
    return replace(found, slo=slo)


def _presets(show: str | None) -> None:
    from equipoise.fleet.files import names, preset_text, summary

    if show is not None:
        print(preset_text(show), end="")
        return
    from rich.console import Console
    from rich.text import Text

    from equipoise.report.tables import plain_table

    table = plain_table()
    table.add_column("deployment", no_wrap=True)
    table.add_column("what it is")
    for name in names():
        table.add_row(name, Text(summary(name)))
    Console().print(table)


def _classes(values: Sequence[str]) -> list[By]:
    found = split(values, "--by")
    for word in found:
        if word not in CLASSES:
            raise InputError(f"no class {word!r}", where="--by", fix=nearest(word, CLASSES))
    return list(dict.fromkeys(found))  # type: ignore[arg-type]


def _window(text: str) -> tuple[float, float]:
    first, colon, last = text.partition(":")
    try:
        found = float(first), float(last)
    except ValueError:
        colon = ""
    if not colon or not 0 <= found[0] < found[1] < float("inf"):
        raise InputError(
            f"{text!r} is not a window",
            where="--timeline-window",
            fix="give two times in seconds, such as 10:12",
        )
    return found


def _say_load(found: Sequence[Simulated]) -> None:
    """What was asked of the pool, where the user did not say it, and whether it was too much."""
    setting, run = found[0].setting, found[0].runs[0]
    if setting.mode != "saturated" and setting.concurrency is not None:
        each = setting.concurrency / setting.pool.total_ranks
        print(
            f"note: arrivals scaled by {run.rate_scale:.3g}, so that about {each:.3g} requests run on a rank",
            file=sys.stderr,
        )
    growth = min(r.batch_growth for s in found for r in s.runs)
    if setting.mode != "saturated" and growth > 2.0:
        print(
            f"note: the pool kept filling, {growth:.1f} times as many requests ran at the end: requests come faster "
            "than it serves them, and latencies grow with the length of the run",
            file=sys.stderr,
        )


def _write(
    plan: ComparePlan,
    found: Sequence[Simulated],
    folder: Path,
    by: Sequence[By],
    window: tuple[float, float] | None,
) -> None:
    from equipoise.study.folder import staged
    from equipoise.study.run_folder import write_run_data

    several = len(found) > 1, plan.seeds > 1
    for simulated in found:
        for i, result in enumerate(simulated.runs):
            target = folder
            if several[0]:
                target /= re.sub(r"[^\w.=-]+", "_", simulated.policy.label)
            if several[1]:
                target /= f"seed-{result.seed}"
            with staged(target) as stage:
                write_run_data(result, stage, by=by)
                if window is not None and i == 0:
                    from equipoise.fleet import window_plan
                    from equipoise.report.fleet_timeline import write_fleet_timeline
                    from equipoise.study.simulation import again

                    drawn = again(plan, simulated.policy, window_plan(result, *window))
                    write_fleet_timeline(drawn, stage / "timeline.json")
                written = sorted(p.name for p in stage.iterdir())
            print(f"wrote {target}/: {', '.join(written)}", file=sys.stderr)


def _print_json(found: Sequence[Simulated], name: str, by: Sequence[By]) -> None:
    from equipoise.fleet.files import to_dict
    from equipoise.study import to_json
    from equipoise.study.run_summary import summarize_run

    setting = found[0].setting
    assert setting.deployment is not None
    runs = [{"label": s.policy.label, **summarize_run(r, by=by, timing=True)} for s in found for r in s.runs]
    document = {
        "schema": "equipoise.simulate/1",
        "deployment": name,
        "tables": to_dict(setting.deployment),
        "trace": setting.trace,
        "concurrency": setting.concurrency,
        "runs": runs,
    }
    print(to_json(document), end="")
