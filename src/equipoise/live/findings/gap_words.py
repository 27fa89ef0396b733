"""Whether the prediction held, and where the difference comes from, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.live.findings.agreement import Level, Ranking
from equipoise.live.findings.analysis import Agreement
from equipoise.live.findings.beyond import beyond_words
from equipoise.live.findings.gap import Gap
from equipoise.study.statistics import Interval

__all__ = ["agreement_words", "gap_words", "level_words", "ms", "ranking_words"]


def agreement_words(a: Agreement, *, gaps: bool = True) -> list[str]:
    """Level, order and gap, a sentence each; the level and the order are never mixed."""
    words = []
    for name in ("itl_ms.mean", "ttft_ms.mean"):
        rows = [x for x in a.levels if x.measure.name == name]
        if rows:
            words.append(level_words(rows))
    words += [ranking_words(r) for r in a.rankings if r.measure.name == "itl_ms.mean"]
    words += [gap_words(g) for g in a.gaps] if gaps else []
    words.append(beyond_words(a.beyond))
    if a.no_regions:
        words.append(a.no_regions)
    words += [f"{policy} is not predicted: {why}." for policy, why in a.prediction.unpredicted.items()]
    return words


def level_words(rows: Sequence[Level]) -> str:
    """How far off the predictions of one measure are."""
    what = rows[0].measure.label.removesuffix(", ms")
    worst = max(rows, key=lambda x: abs(x.log_ratio.mean))
    off = [100 * x.off[0] for x in rows]
    low, high = min(off), max(off)
    spread = f"{low:+.1f} %" if len(rows) == 1 else f"{low:+.1f} to {high:+.1f} %"
    _, least, most = worst.off
    ends = "" if not math.isfinite(least) else f", {100 * least:+.1f} to {100 * most:+.1f} %"
    partial = " (predicted without the time prompts take)" if rows[0].partial else ""
    return f"{what}, level: predicted {spread} off measured, the most for {worst.policy}{ends}{partial}."


def ranking_words(r: Ranking) -> str:
    """Whether the order was right."""
    what = r.measure.label.removesuffix(", ms")
    right, wrong, undecided = (r.count(k) for k in ("right", "wrong", "undecided"))
    decided = right + wrong
    ends = "" if not math.isfinite(r.low) else f" ({r.low:.2f} to {r.high:.2f} when repeats are drawn again)"
    tau = f"Kendall's tau over all policies is {r.tau:.2f}{ends}."
    if not decided:
        return f"{what}, order: no pair was shown to differ, so there is no order to get right. {tau}"
    names = ", ".join(f"{p.a} and {p.b}" for p in r.pairs if p.agrees == "wrong")
    verdict = "all in the right order" if not wrong else f"{right} in the right order; wrong: {names}"
    rest = f"; {undecided} more show no difference" if undecided else ""
    return (
        f"{what}, order: {decided} pair{'s' if decided > 1 else ''} shown to differ, {verdict}{rest}. {tau}"
    )


def gap_words(g: Gap) -> str:
    """Where measured and predicted differ under one policy."""
    head = f"{g.policy}: ITL measured {ms(g.itl_ms)} from predicted"
    if g.loads_ms is None or g.price_ms is None:
        itl = (
            f"{head}; its parts are not identifiable from this data, for the ranks of requests are not known"
        )
    else:
        prompts = (
            "what prompts in between add is not identifiable, for there was hardly a time without"
            if g.prompts_ms is None
            else f"of that {ms(g.prompts_ms)} with prompts computed in between"
        )
        itl = (
            f"{head}: {ms(g.loads_ms)} by other loads (who ran where and when), {ms(g.price_ms)} by steps that cost "
            f"more or less than priced, {prompts}"
        )
    wait = (
        "queues not identifiable (nobody counted who waited)"
        if g.wait_ms is None
        else f"{ms(g.wait_ms)} in queues"
    )
    return (
        f"{itl}. TTFT {ms(g.ttft_ms)}: {ms(g.sent_late_ms)} sent late, {wait}, {ms(g.rest_ms)} unexplained "
        "(prompts, the way there and back)."
    )


def ms(i: Interval) -> str:
    """A difference in milliseconds with its interval."""
    value = f"{_number(i.mean)} ms"
    return value if i.method == "none" else f"{value} ({_number(i.low)} to {_number(i.high)})"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "n/a"
    text = f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.1f}" if abs(value) >= 10 else f"{value:+.2f}"
    return "0" if text in ("+0.00", "-0.00") else text
