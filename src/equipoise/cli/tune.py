"""`equipoise tune`: the best parameters of a policy, and how flat the optimum is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cyclopts import App

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Json, Many, Quiet, costs_from, default_jobs
from equipoise.cli.progress import progress
from equipoise.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equipoise.study.tune import Range, Tuning

__all__ = ["app"]

app = App(name="tune")


@app.default
def tune(
    policy: str = "dualpath",
    /,
    *,
    range_: Many = (),
    trace: Many = ("agentic-coding",),
    cost: Many = ("v1", "v2"),
    ranks: Whole = 64,
    instances: Whole = 1,
    concurrency: Whole | None = None,
    requests: Whole | None = None,
    kv_capacity_tokens: Whole | None = None,
    max_batch: Whole | None = None,
    seeds: Whole = 5,
    seed: Whole = 0,
    refinements: Whole = 16,
    us_per_unit: float | None = None,
    jobs: Whole | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search a policy's parameters in saturated replay: a grid, then a refinement by Optuna.

    The winner is measured again beside the policy's defaults on seeds the search never saw.

    Parameters
    ----------
    policy
        dualpath (searches z) or length_split (window, percentile, swapped), or any policy with --range.
        Parameters behind commas are held, as in dualpath,average=current.
    range_
        Where to search a parameter: name=low:high or name=a:b:c for a grid. Repeatable.
    trace
        A trace file or folder, or a preset. Repeatable.
    cost
        Step costs, tuned one by one. Commas or repeated.
    ranks
        DP ranks of an instance.
    instances
        Instances, each with its own step clock.
    concurrency
        Requests in the pool; 32 a rank by default.
    requests
        Requests of a run. Default: enough to turn the pool over 20 times.
    kv_capacity_tokens
        KV cache of a rank, in tokens; unlimited by default.
    max_batch
        Running requests a rank may hold; unlimited by default.
    seeds
        Runs a candidate.
    seed
        The first seed.
    refinements
        Candidates tried after the grid.
    us_per_unit
        Microseconds per unit of the costs.
    jobs
        Replays at a time; one a processor by default.
    """
    from equipoise.policies import parse
    from equipoise.replay import Pool
    from equipoise.study import ComparePlan
    from equipoise.study.tune import tune as search

    held = parse(policy)
    given = {s.partition("=")[0].strip() for s in policy.split(",")[1:]}
    plan = ComparePlan(
        traces=trace,
        costs=costs_from(cost, us_per_unit),
        policies=[held],
        pool=Pool(instances, ranks, kv_capacity_tokens, max_batch),
        concurrency=concurrency,
        requests=requests,
        seeds=seeds,
        first_seed=seed,
    )
    space = _space(held.name, range_, given)
    fixed = {k: v for k, v in held.params.items() if k in given}
    name = policy.split(",")[0]
    with progress("tune", "candidates", quiet=quiet or as_json) as tick:
        tunings = search(
            plan,
            name,
            space=space,
            fixed=fixed,
            refinements=refinements,
            jobs=default_jobs(jobs),
            progress=tick,
        )
    if as_json:
        print(
            json.dumps(
                {"schema": "equipoise.tune/1", "tunings": [_plain(t, space) for t in tunings]}, indent=2
            )
        )
    else:
        for tuning in tunings:
            _show(tuning, space)


def _space(policy: str, texts: tuple[str, ...], held: set[str]) -> list[Range]:
    from equipoise.study.tune import Range, default_space

    if not texts:
        found = [r for r in default_space(policy) if r.name not in held]
        if not found:
            raise InputError("every parameter is held", where="tune", fix="leave one free")
        return found
    return [Range(name, grid) for name, grid in map(_range, texts)]


def _range(text: str) -> tuple[str, tuple[float, ...]]:
    name, equals, values = text.partition("=")
    try:
        grid = tuple(sorted(float(v) for v in values.split(":")))
    except ValueError:
        grid = ()
    if not equals or len(grid) < 2:
        raise InputError(
            f"{text!r} is not a range", where="--range", fix="such as z=1.0:1.5 or z=1.0:1.2:1.5"
        )
    if len(grid) == 2:
        low, high = grid
        grid = tuple(low + (high - low) * i / 6 for i in range(7))
    return name.strip(), grid


def _plain(tuning: Tuning, space: list[Range]) -> Mapping[str, Any]:
    from equipoise.study.summary import plain_interval

    return {
        "trace": tuning.setting.trace,
        "cost": tuning.setting.cost.name,
        "policy": tuning.best.policy.name,
        "best": dict(tuning.best.policy.params),
        "default": dict(tuning.default.policy.params),
        "excess_fresh_seeds": {
            "best": plain_interval(tuning.best.excess),
            "default": plain_interval(tuning.default.excess),
        },
        "gain": plain_interval(tuning.gain),
        "flat": {r.name: list(tuning.flat_range(r.name)) for r in space},
        "trials": [
            {
                "params": dict(t.cell.policy.params),
                "excess": plain_interval(t.cell.excess),
                "as_good": t.as_good_as_best,
            }
            for t in tuning.trials
        ],
    }


def _show(tuning: Tuning, space: list[Range]) -> None:
    from rich.console import Console
    from rich.table import Table

    from equipoise.study import setting_words

    console = Console()
    table = Table(title=setting_words(tuning.setting), title_justify="left", box=None, pad_edge=False)
    for r in space:
        table.add_column(r.name, justify="right")
    table.add_column("excess %", justify="right")
    table.add_column("behind the best, points", justify="right")
    table.add_column("")
    for trial in tuning.trials[:12]:
        params, behind = trial.cell.policy.params, trial.behind
        gap = (
            ""
            if behind is None
            else f"{100 * behind.mean:.2f} ({100 * behind.low:.2f} to {100 * behind.high:.2f})"
        )
        table.add_row(
            *(_value(params[r.name]) for r in space),
            f"{100 * trial.cell.excess.mean:.2f}",
            gap,
            "best"
            if behind is None
            else "as good"
            if trial.as_good_as_best
            else "not told apart"
            if behind.covers_zero
            else "",
        )
    console.print(table)
    if len(tuning.trials) > 12:
        console.print(f"... and {len(tuning.trials) - 12} more candidates; --json lists all", highlight=False)
    for r in space:
        low, high = tuning.flat_range(r.name)
        words = f"is shown as good as the best (within 0.1 points) from {_value(low)} to {_value(high)}"
        console.print(
            f"{r.name} {words if low != high else f'= {_value(low)} only is the best'}.", highlight=False
        )
    gain = tuning.gain
    low, high = (gain.low, gain.high) if gain.mean >= 0 else (-gain.high, -gain.low)
    bounds = f"({100 * low:.2f} to {100 * high:.2f})"
    words = (
        f"no difference to the defaults is shown {bounds}"
        if gain.covers_zero
        else f"{100 * abs(gain.mean):.2f} points {'less' if gain.mean > 0 else 'more'} than the defaults {bounds}"
    )
    console.print(
        f"On fresh seeds {tuning.best.policy.label} has {100 * tuning.best.excess.mean:.2f} % excess; {words}.\n",
        highlight=False,
    )


def _value(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
