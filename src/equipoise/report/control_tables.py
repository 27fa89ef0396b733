"""`equipoise control simulate` on a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.control.run import ControlRun
from equipoise.report.numbers import MISSING, percent
from equipoise.study.engine_control import ControlCell, ControlPlan
from equipoise.study.statistics import Interval

__all__ = ["print_control"]

Column = tuple[str, Callable[[ControlCell], str]]


def print_control(plan: ControlPlan, cells: Sequence[ControlCell], console: Console) -> None:
    """One table a policy; a second one where requests sat out steps."""
    requests, first = plan.ranks * plan.per_rank, plan.strategies[0]
    columns: list[Column] = [
        ("ktok/s", lambda c: _kilo(c.over(lambda r: r.tokens_per_s))),
        ("gain %", lambda c: _gain(c.gain) if c.strategy != first else ""),
        ("verify", lambda c: f"{c.over(lambda r: r.drafts_verified / r.steps / requests).mean:.2f}"),
        ("accept", lambda c: f"{c.over(lambda r: r.drafts_accepted / r.steps / requests).mean:.2f}"),
        ("bubble", lambda c: _percent(c, lambda r: r.bubble_share)),
        ("turned", lambda c: _percent(c, lambda r: r.slack_turned, 0)),
    ]
    waits: list[Column] = [
        ("sat out %", lambda c: _percent(c, lambda r: r.sat_out_share, 2)),
        ("longest pause", lambda c: f"{c.worst(lambda r: r.longest_pause_steps):.0f}"),
        ("longest wait", lambda c: f"{c.worst(lambda r: r.longest_wait_steps):.0f}"),
        ("worst share %", lambda c: percent(-c.worst(lambda r: -r.least_share_run), 0)),
    ]
    for policy in dict.fromkeys(cell.policy for cell in cells):
        mine = [cell for cell in cells if cell.policy == policy]
        console.print(Text(f"{plan.trace}, {plan.price.cost.name}, placed by {policy}", "bold"))
        console.print(_table(mine, columns))
        if any("+" in cell.strategy for cell in mine):
            console.print(_table(mine, waits))
        console.print()
    console.print(Text(_legend(plan), "dim"))


def _table(cells: Sequence[ControlCell], columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("strategy", min_width=13, no_wrap=True)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        table.add_row(cell.strategy.replace("+", "\n +"), *(show(cell) for _, show in columns))
    return table


def _legend(plan: ControlPlan) -> str:
    old = f"{plan.horizon} step{'s' if plan.horizon > 1 else ''} old"
    words = (
        f"DP{plan.ranks}, {plan.per_rank} requests a rank, {plan.drafts} drafts, survivals {old}; "
        f"{plan.seeds} seed{'s' if plan.seeds > 1 else ''} of {plan.steps} steps"
        f"{', 95 % intervals' if plan.seeds > 1 else ''}. gain: tokens a second above {plan.strategies[0]}. "
        "verify, accept: drafts a request and step. bubble: percent of the barriers' time that the average rank waits. "
        "turned: of the waiting that each rank's own argmax leaves on ranks with a draft left that survives more often "
        "than 0.3, the percent gone."
    )
    if any("+" in name for name in plan.strategies):
        words += (
            " sat out: share of the requests' steps that they were paused or held back in; longest pause and wait of "
            "one request, in steps; worst share: of the requests that ended after 64 steps or more, the smallest share "
            "of its steps that one ran in."
        )
    return words


def _percent(cell: ControlCell, quantity: Callable[[ControlRun], float], digits: int = 1) -> str:
    return percent(cell.over(quantity).mean, digits)


def _kilo(found: Interval) -> str:
    half = f" ± {(found.high - found.mean) / 1e3:.1f}" if math.isfinite(found.high) else ""
    return f"{found.mean / 1e3:.1f}{half}"


def _gain(found: Interval) -> str:
    if not math.isfinite(found.mean):
        return MISSING
    half = f" ± {percent(found.high - found.mean, 1)}" if math.isfinite(found.high) else ""
    return f"{100 * found.mean:+.1f}{half}"
