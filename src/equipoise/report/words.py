"""The standing words of a report: how to read it, what the intervals are, what a cost says."""

from __future__ import annotations

import math

from equipoise.cost import StepCost
from equipoise.cost.summary import barriers
from equipoise.study import Comparison
from equipoise.study.statistics import BLOCKS
from equipoise.traces.presets import PRESETS

__all__ = ["cost_words", "formula_lines", "interval_words", "reading", "whisker_words"]


def _method(comparison: Comparison) -> str:
    methods = {c.excess.method for c in comparison.cells}
    return "none" if methods == {"none"} else "blocks" if "blocks" in methods else "seeds"


def whisker_words(comparison: Comparison) -> str:
    """What the whiskers are."""
    return {
        "seeds": f"Whiskers are 95 % intervals over {comparison.plan.seeds} seeds.",
        "blocks": "Whiskers are 95 % intervals over blocks of one run.",
        "none": "One short run gives no interval, so there are no whiskers.",
    }[_method(comparison)]


def interval_words(comparison: Comparison) -> str:
    """What stands in brackets in the tables."""
    return {
        "seeds": f"In brackets: 95 % intervals over {comparison.plan.seeds} seeds.",
        "blocks": "In brackets: 95 % intervals over blocks of one run.",
        "none": "One short run gives no interval; use more seeds.",
    }[_method(comparison)]


def reading(comparison: Comparison) -> list[tuple[str, str]]:
    """How to read a report, paragraph by paragraph."""
    found = [
        (
            "Excess and ideal",
            "All ranks of an instance wait for the slowest, so a step costs what its slowest rank costs (rank by "
            "rank for every group of layers that waits together). The ideal of a step is the price of the same "
            "requests and the same context tokens spread perfectly evenly over the ranks of the instance. Excess is "
            "the cost of all counted steps over their ideal, minus 1; balance is the same figure the other way "
            "round, ideal over cost. No policy reaches 0 %: requests cannot be cut in pieces.",
        ),
        (
            "Bubble",
            "The bubble is the share of the step time that the average rank spends waiting for the slowest one. What "
            "every step pays whatever the load (the constant of a cost) counts as work, not as waiting.",
        ),
        ("Intervals", _interval_paragraph(comparison)),
        (
            "What the costs leave out",
            "A cost prices what it counts. V1 and V2 count the multiply-adds of attention: not communication, not the "
            "experts, not fixed time such as kernel launches. Whatever a real step spends besides is paid by every "
            "policy alike and dilutes the differences shown here: if attention is half of the step, 8 points of "
            "excess are about 4 points of step time. A cost fitted to measured steps has that share in it.",
        ),
        (
            "What is counted",
            "Averages begin when the pool has turned over "
            f"{_times(comparison.plan.warmup_turnovers)} and end when the last request is placed, so neither the "
            "filling nor the draining of the pool enters them. Max/mean is the sum over counted steps of the largest "
            "rank's batch or context tokens over the sum of the means; 1 is perfectly even.",
        ),
    ]
    if comparison.plan.mode == "timed":
        found.append(
            (
                "Latencies",
                "TPOT is the decode time of a request over its output tokens. The queue wait is from arrival to the "
                "start of the first decode step, so it holds half a step on average even in an idle pool. Both come "
                "from simulated time: the cost in its unit times us_per_unit.",
            )
        )
    return found


def _interval_paragraph(comparison: Comparison) -> str:
    plan = comparison.plan
    method = _method(comparison)
    if method == "none":
        return (
            "There are none: the only run is too short to be cut into blocks. With several seeds every figure gets "
            "an interval."
        )
    if method == "blocks":
        return (
            f"With one seed, the run is cut into {BLOCKS} blocks, and the interval (Student's t, 95 %) comes from the "
            "spread of the blocks. Requests that outlive a block tie neighbours together, so it is narrower than the "
            "truth; several seeds are better."
        )
    drawn = "draws its requests anew" if all(_preset(t) for t in plan.traces) else "mixes its requests anew"
    return (
        f"Student's t at 95 % over {plan.seeds} seeds; each seed {drawn}, and all policies see the same requests, so "
        "that differences are taken seed by seed. Where the interval of a difference covers 0, no difference is "
        "shown. The intervals are about chance between seeds only: they say nothing about other traffic, nor about "
        "how far the cost is from your engine."
    )


def _preset(trace: str) -> bool:
    return trace.removeprefix("preset:") in PRESETS


def _times(turnovers: float) -> str:
    return "once" if turnovers == 1 else f"{turnovers:g} times"


def formula_lines(cost: StepCost) -> str:
    """The formula of a cost, a barrier a line."""
    parts = barriers(cost.formula())
    lead = ["cost = ", *["     + "] * (len(parts) - 1)]
    return "\n".join(a + b for a, b in zip(lead, parts, strict=True))


def cost_words(cost: StepCost) -> str:
    """Unit, barrier, exchange rate and source of a cost, in sentences."""
    unit = "The unit is a microsecond"
    if cost.unit == "request":
        unit = f"The unit is the price of one short request, {cost.us_per_unit:g} µs"
    barrier = (
        "ranks wait for each other once a step" if cost.barrier == "step" else "ranks wait at every term"
    )
    rate = cost.request_in_context_tokens
    exchange = "Context is free."
    if math.isfinite(rate):
        exchange = f"One more request costs as much as {rate:,.0f} context tokens."
    source = f" Source: {cost.source}" if cost.source else ""
    return f"{unit}; {barrier}. {exchange}{source}"
