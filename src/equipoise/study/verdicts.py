"""What the numbers say, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.study.compare import Cell, Comparison, Difference
from equipoise.study.plan import Setting

__all__ = ["difference_words", "setting_words", "verdicts"]


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
    parts = [Path(setting.trace).name, setting.cost.name, size]
    if setting.mode == "saturated":
        parts.append(f"{setting.concurrency} requests")
    else:
        parts.append("timed")
    if pool.groups > 1:
        parts.append(f"{pool.groups} groups by {setting.group_policy}")
    return ", ".join(parts)


def verdicts(comparison: Comparison) -> list[str]:
    """One paragraph a setting: the best policy, what it beats, what cannot be told from it."""
    return [f"{setting_words(s)}: {_verdict(comparison, s)}" for s in comparison.settings()]


def _verdict(comparison: Comparison, setting: Setting) -> str:
    best = comparison.best(setting)
    excess = best.excess
    interval = "" if excess.method == "none" else f" ({100 * excess.low:.2f} to {100 * excess.high:.2f} %)"
    words = [f"least excess {100 * excess.mean:.2f} %{interval} with {best.policy.label}"]
    others = [c for c in comparison.of(setting) if c is not best]
    arrived, rejected = (sum(getattr(r, f) for r in best.runs) for f in ("arrived", "rejected"))
    lost = (
        f" {rejected:,} of {arrived:,} requests exceed a rank's capacity and were rejected."
        if rejected
        else ""
    )
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


def _names(cells: Sequence[Cell]) -> str:
    return ", ".join(c.policy.label for c in cells)
