"""The numbers of one run: latencies, rates, balance; and how each moves when the trace is drawn again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from equipoise.errors import InputError
from equipoise.live.findings.loads import Lives, grid, loads_at, max_over_mean
from equipoise.live.findings.runs import Chosen, Run
from equipoise.study.pairs.figures import Figure, per_unit, quantile, sums_ratio
from equipoise.types import Floats, Ints

__all__ = ["MEASURES", "Measure", "Number", "Slo", "lives_of", "numbers", "whole_numbers"]

Scale = Literal["ratio", "points"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that runs are compared by.

    Parameters
    ----------
    quantity, statistic : str
    label : str
        As tables name it, with its unit.
    scale : {"ratio", "points"}
        Whether policies are compared by their ratio or, being shares, by their difference.
    less_is_better : bool
    """

    quantity: str
    statistic: str
    label: str
    scale: Scale = "ratio"
    less_is_better: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Quantity and statistic."""
        return self.quantity, self.statistic

    @property
    def name(self) -> str:
        """As options and files name it: ``itl_ms.mean``."""
        return f"{self.quantity}.{self.statistic}"

    @property
    def is_time(self) -> bool:
        """Whether it is in milliseconds."""
        return self.quantity.endswith("_ms")


_TIMES = {"itl_ms": "ITL", "ttft_ms": "TTFT", "tpot_ms": "TPOT", "end_to_end_ms": "end to end"}
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MEASURES: Mapping[str, Measure] = {
    m.name: m
    for m in (
        *(Measure(q, s, f"{label} {s}, ms") for q, label in _TIMES.items() for s in ("mean", *PERCENTILES)),
        Measure("tokens_per_s", "mean", "tokens/s", less_is_better=False),
        Measure("goodput_per_s", "mean", "good requests/s", less_is_better=False),
        Measure("good_share", "mean", "good share", "points", less_is_better=False),
        Measure("answered_share", "mean", "answered share", "points", less_is_better=False),
        Measure("max_over_mean_batch", "mean", "batch, largest over mean"),
        Measure("max_over_mean_context", "mean", "context, largest over mean"),
    )
}
"""All of them by name, in the order of tables."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count as good; None: no bound."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(
                    f"{name} = {value:g}",
                    where=f"--{name.replace('_', '-')}",
                    fix="must be a number, 0 or more",
                )

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A number of one run.

    Parameters
    ----------
    value : float
        NaN: not known.
    figure : Figure or None
        How it moves when stretches of the trace are drawn again; None where it is not a sum over requests.
    """

    value: float
    figure: Figure | None = None


def lives_of(run: Run, among: Chosen | None = None) -> Lives:
    """The answered requests as they held their ranks."""
    chosen = run.answered if among is None else run.answered & among
    return Lives(
        run.first_s[chosen],
        run.finished_s[chosen],
        run.prompt_tokens[chosen],
        run.output_tokens[chosen],
        run.rank[chosen],
    )


def numbers(run: Run, chosen: Chosen, unit: Ints, units: int) -> dict[str, Number]:
    """Latencies of the chosen requests, all of which were answered.

    TTFT and end-to-end times count from when a request should have been sent, so a client or a router that is late
    does not look better for it. The mean ITL is over all tokens alike, from the times of the first and the last one;
    its percentiles are over the gaps between chunks as they arrived.

    Parameters
    ----------
    run : Run
    chosen : bool[requests]
    unit : int64[requests]
        Stretch of the trace each belongs to.
    units : int
    """
    found: dict[str, Number] = {}
    if not chosen.any():
        return found
    of = unit[chosen]
    intended, first, last = run.intended_s[chosen], run.first_s[chosen], run.finished_s[chosen]
    gaps = run.output_tokens[chosen] - 1
    several = gaps > 0
    if several.any():
        spent_ms = 1000.0 * (last - first)
        mean = sums_ratio(
            per_unit(of[several], units, spent_ms[several]),
            per_unit(of[several], units, gaps[several].astype(float)),
        )
        found["itl_ms.mean"] = Number(mean.value, mean)
        _times(found, "tpot_ms", spent_ms[several] / gaps[several], of[several], units)
    counted = chosen[run.gap_of]
    if counted.any():
        _percentiles(found, "itl_ms", run.gap_ms[counted], unit[run.gap_of[counted]], units)
    _times(found, "ttft_ms", 1000.0 * (first - intended), of, units)
    _times(found, "end_to_end_ms", 1000.0 * (last - intended), of, units)
    return found


def whole_numbers(run: Run, slo: Slo, ranks: Sequence[int], unit: Ints, units: int) -> dict[str, Number]:
    """Rates, shares and balance of a whole run, whatever became of its requests."""
    answered, asked = run.answered, run.asked
    found: dict[str, Number] = {}
    if not answered.any():
        return found
    span_s = float(run.finished_s[answered].max() - np.nanmin(run.intended_s))
    found["tokens_per_s"] = Number(_rate(float(run.output_tokens[answered].sum()), span_s))
    share = sums_ratio(per_unit(unit[answered], units), per_unit(unit[asked], units))
    found["answered_share"] = Number(share.value, share)
    if slo:
        good = _good(run, slo)
        found["goodput_per_s"] = Number(_rate(float(good.sum()), span_s))
        share = sums_ratio(per_unit(unit[good], units), per_unit(unit[asked], units))
        found["good_share"] = Number(share.value, share)
    lives = lives_of(run)
    if lives.known > 0.99:
        loads = loads_at(lives, grid(lives), sum(ranks))
        found["max_over_mean_batch"] = Number(max_over_mean(loads.batch, ranks))
        found["max_over_mean_context"] = Number(max_over_mean(loads.context_tokens, ranks))
    return {f"{name}.mean": n for name, n in found.items()}


def _good(run: Run, slo: Slo) -> Chosen:
    good: Chosen = run.answered.copy()
    if slo.ttft_ms is not None:
        good &= 1000.0 * (run.first_s - run.intended_s) <= slo.ttft_ms
    if slo.tpot_ms is not None:
        gaps = np.maximum(run.output_tokens - 1, 0)
        good &= 1000.0 * (run.finished_s - run.first_s) <= slo.tpot_ms * gaps + 1e-9
    return good


def _times(found: dict[str, Number], quantity: str, values: Floats, unit: Ints, units: int) -> None:
    mean = sums_ratio(per_unit(unit, units, values), per_unit(unit, units))
    found[f"{quantity}.mean"] = Number(mean.value, mean)
    _percentiles(found, quantity, values, unit, units)


def _percentiles(found: dict[str, Number], quantity: str, values: Floats, unit: Ints, units: int) -> None:
    for name, level in PERCENTILES.items():
        figure = quantile(values, unit, units, level)
        found[f"{quantity}.{name}"] = Number(figure.value, figure)


def _rate(amount: float, span_s: float) -> float:
    return amount / span_s if span_s > 0 else math.nan
