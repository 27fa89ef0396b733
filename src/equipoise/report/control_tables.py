"""`equipoise control simulate` on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from equipoise.report.numbers import percent
from equipoise.study.engine_control import ControlCell, ControlPlan
from equipoise.study.statistics import Interval

__all__ = ["print_control"]


def print_control(plan: ControlPlan, cells: Sequence[ControlCell], console: Console) -> None:
    """One table a policy."""
    requests = plan.ranks * plan.per_rank
    for policy in dict.fromkeys(cell.policy for cell in cells):
        table = Table(title=f"{plan.trace}, {plan.price.cost.name}, placed by {policy}", title_justify="left")
        for name in (
            "strategy",
            "k tokens/s",
            f"% above {plan.strategies[0]}",
            "verified",
            "accepted",
            "bubble %",
        ):
            table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
        for cell in (c for c in cells if c.policy == policy):
            table.add_row(
                cell.strategy,
                _kilo(cell.over(lambda r: r.tokens_per_s)),
                _gain(cell.gain) if cell.strategy != plan.strategies[0] else "",
                f"{cell.over(lambda r: r.drafts_verified / r.steps / requests).mean:.2f}",
                f"{cell.over(lambda r: r.drafts_accepted / r.steps / requests).mean:.2f}",
                percent(cell.over(lambda r: r.bubble_share).mean, 1),
            )
        console.print(table)
    console.print(
        f"DP{plan.ranks}, {plan.per_rank} requests a rank, {plan.drafts} drafts, survivals {plan.horizon} step"
        f"{'s' if plan.horizon > 1 else ''} old, {plan.seeds} seeds of {plan.steps} steps, 95 % intervals. "
        "verified, accepted: drafts a request and step.",
        soft_wrap=False,
    )


def _kilo(found: Interval) -> str:
    half = f" ± {(found.high - found.mean) / 1e3:.1f}" if math.isfinite(found.high) else ""
    return f"{found.mean / 1e3:.1f}{half}"


def _gain(found: Interval) -> str:
    half = f" ± {percent(found.high - found.mean, 1)}" if math.isfinite(found.high) else ""
    return f"{100 * found.mean:+.1f}{half}"
