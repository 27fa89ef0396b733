"""What the numbers say, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from equipoise.replay import Information
from equipoise.study.bounds import BASELINE, share_of
from equipoise.study.compare import Cell, Comparison, Difference
from equipoise.study.plan import Setting

__all__ = ["difference_words", "information_words", "setting_words", "verdicts"]


def difference_words(difference: Difference) -> str:
    """One comparison as a sentence; says so when the interval covers zero."""
    d = difference.excess
    a, b = difference.policy.label, difference.against.label
    if d.method == "none":
        return f"{a} against {b}: no interval from one short run; use more seeds"
    bounds = f"{100 * d.low:+.2f} to {100 * d.high:+.2f} points"
    if d.covers_zero:
        return f"no difference shown between {a} and {b} ({bounds})"
    relation = "less" if d.mean < 0 else "more"
    return f"{a} has {100 * abs(d.mean):.2f} points {relation} excess than {b} ({bounds})"


def setting_words(setting: Setting) -> str:
    """A setting in a few words."""
    pool = setting.pool
    size = f"DP{pool.ranks}" if pool.instances == 1 else f"{pool.instances} x DP{pool.ranks}"
    if setting.deployment_name is not None:
        size = f"{Path(setting.deployment_name).name} ({size})"
    parts = [Path(setting.trace).name, setting.cost.name, size]
    if setting.mode == "saturated":
        parts.append(f"{setting.concurrency} requests")
    else:
        parts.append(setting.mode)
    if pool.groups > 1:
        parts.append(f"{pool.groups} groups by {setting.group_policy}")
    elif setting.grouped:
        parts.append(f"instances by {setting.group_policy}")
    if not setting.information.plain:
        parts.append(information_words(setting.information))
    return ", ".join(parts)


def information_words(information: Information) -> str:
    """Who decides, and on what, in a few words."""
    i = information
    who = f"{i.replicas} replicas" if i.replicas > 1 else "one router"
    owners = ", each rank chosen by the owner of its instance" if i.split == "instance" else ""
    if i.knows == "exact":
        return f"{who} on the true state{owners}"
    late = [f"{i.delay_steps} steps"] * (i.delay_steps > 0) + [f"{1000 * i.delay_s:g} ms"] * (i.delay_s > 0)
    every = "every step" if i.period_steps == 1 else f"every {i.period_steps} steps"
    if i.period_s > 0:
        every = f"every {1000 * i.period_s:g} ms"
    how = {
        "ledger": "own requests exactly",
        "extrapolated": "own requests extrapolated",
        "acknowledged": "acknowledged dispatches",
        "erased": "reports alone",
    }
    return (
        f"{who}, {how[i.knows]}, reports {every}{', ' + ' and '.join(late) + ' late' if late else ''}{owners}"
    )


def verdicts(comparison: Comparison) -> list[str]:
    """One paragraph a setting: the best policy, what it beats, what cannot be told from it."""
    return [
        f"{setting_words(s)}: {_verdict(comparison, s)}{_oracle_words(comparison, s)}"
        for s in comparison.settings()
    ]


FILLING = 2.0
"""Running requests at the end of the counted time over those at its beginning, from which a pool is called overrun."""


def _verdict(comparison: Comparison, setting: Setting) -> str:
    if setting.mode != "saturated" and all(c.runs[0].tpot_ms for c in comparison.of(setting)):
        return _timed_verdict(comparison, setting)
    best = comparison.best(setting)
    excess = best.excess
    interval = "" if excess.method == "none" else f" ({100 * excess.low:.2f} to {100 * excess.high:.2f} %)"
    words = [f"least excess {100 * excess.mean:.2f} %{interval} with {best.policy.label}"]
    others = [c for c in comparison.of(setting) if c is not best]
    lost = _lost(best)
    if not others:
        return words[0] + "." + lost
    tied = [c for c in others if comparison.difference(c, best).excess.covers_zero]
    words.append(
        f"not told apart from it: {_names(tied)}" if tied else "every other policy is shown to be worse"
    )
    baseline = comparison.baseline(setting)
    if baseline is not best and baseline not in tied:
        gain = comparison.difference(baseline, best).excess
        words.append(
            f"{baseline.policy.label} pays {100 * gain.mean:.2f} points more "
            f"({100 * gain.low:.2f} to {100 * gain.high:.2f})"
        )
    return "; ".join(words) + "." + lost


def _timed_verdict(comparison: Comparison, setting: Setting) -> str:
    """Latency first: policies hold different numbers of requests then, and excess compares each to its own ideal."""
    best = comparison.best(setting, "tpot_ms")
    p99 = (best.percentiles("tpot_ms") or {})["p99"]
    words = [
        f"least mean TPOT {best.mean('tpot_ms'):.2f} ms (p99 {p99:.2f}) with {best.policy.label}, "
        f"{best.mean('tokens_per_s'):,.0f} tokens/s, excess {100 * best.mean('excess'):.2f} %"
    ]
    others = [c for c in comparison.of(setting) if c is not best]
    gaps = {c.policy.text: comparison.difference(c, best, "tpot_ms").values for c in others}
    if any(g.method == "none" for g in gaps.values()):
        words.append("one run a policy gives no interval of a latency; use more seeds")
    elif others:
        tied = [c for c in others if gaps[c.policy.text].covers_zero]
        words.append(
            f"not told apart from it: {_names(tied)}" if tied else "every other policy is shown to be slower"
        )
        baseline = comparison.baseline(setting)
        if baseline is not best and baseline not in tied:
            gap = gaps[baseline.policy.text]
            words.append(
                f"{baseline.policy.label} takes {gap.mean:.2f} ms more ({gap.low:.2f} to {gap.high:.2f})"
            )
    return "; ".join(words) + "." + _overrun(comparison.of(setting)) + _lost(best)


def _overrun(cells: Sequence[Cell]) -> str:
    """A warning where the pool kept filling: its latencies are those of an overload and grow with the trace."""
    growth = min(c.mean("batch_growth") for c in cells)
    if not growth > FILLING:
        return ""
    return (
        f" Under every policy the pool kept filling ({growth:.1f} times as many running requests at the end of the "
        "counted time as at its start): requests come faster than it serves them, and the latencies grow with the "
        "length of the trace."
    )


def _oracle_words(comparison: Comparison, setting: Setting) -> str:
    """What the oracle reached, and how much of it the best policy won; nothing where it was not asked."""
    bound = comparison.bound(setting)
    if bound is None:
        return ""
    best = comparison.best(setting)
    won = share_of(best, bound)
    oracle = f" The oracle, which knows the future, reached {100 * bound.excess.mean:.2f} %"
    if not math.isfinite(won.mean):
        return f"{oracle}; {BASELINE} leaves nothing to win."
    ends = "" if won.method == "none" else f" ({100 * won.low:.1f} to {100 * won.high:.1f} %)"
    return (
        f"{oracle}, {BASELINE} {100 * bound.baseline_excess.mean:.2f} %: {best.policy.label} wins "
        f"{100 * won.mean:.1f} %{ends} of what is between them."
    )


def _lost(cell: Cell) -> str:
    arrived, rejected = (sum(getattr(r, f) for r in cell.runs) for f in ("arrived", "rejected"))
    if not rejected:
        return ""
    return f" {rejected:,} of {arrived:,} requests exceed a rank's capacity and were rejected."


def _names(cells: Sequence[Cell]) -> str:
    return ", ".join(c.policy.label for c in cells)
