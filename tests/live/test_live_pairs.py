"""Pairs of policies: three different sentences, and intervals that hold as often as they say."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from equipoise._blocks import block_length
from equipoise.live.findings.numbers import MEASURES, Number
from equipoise.live.findings.pairs import Finding, finding_of
from equipoise.live.findings.sentences import finding_words, needed_words, pair_sentences, traffic_words
from equipoise.study.pairs.figures import Draws, draws, per_unit, sums_ratio, units_for
from equipoise.study.statistics import student

ITL = MEASURES["itl_ms.mean"]
REQUESTS = 1200
UNITS = units_for(REQUESTS)
UNIT = (np.arange(REQUESTS) * UNITS // REQUESTS).astype(np.int64)
NOTHING = Draws(np.zeros((0, UNITS)), np.zeros((0, UNITS)), UNITS, 1.0, 1)


def number(values: np.ndarray) -> Number:
    figure = sums_ratio(per_unit(UNIT, UNITS, values), per_unit(UNIT, UNITS))
    return Number(figure.value, figure)


def plain(ours: list[float], theirs: list[float], *, margin: float = 0.02, pairs: int = 1) -> Finding:
    rows = [(Number(x), Number(y)) for x, y in zip(ours, theirs, strict=True)]
    return finding_of(ITL, "a", "b", rows, NOTHING, margin, pairs)


def test_a_difference_that_is_shown() -> None:
    f = plain([9.0, 9.1, 8.9, 9.05], [10.0, 10.1, 9.95, 10.0])
    assert f.verdict == "lower"
    assert math.exp(f.interval.mean) == pytest.approx(0.9, abs=0.002)
    assert finding_words(f).startswith("ITL mean: a is 9.99 % lower than b (-10.7 to -9.30 %)")


def test_equality_that_is_shown() -> None:
    f = plain([10.0, 10.1, 9.9, 10.02], [10.01, 10.08, 9.91, 10.01])
    assert f.verdict == "equal"
    assert "shown equal within 2 %" in finding_words(f)


def test_neither() -> None:
    f = plain([10.0, 10.6, 9.3, 10.4], [10.2, 9.8, 10.1, 9.9])
    assert f.verdict == "not_shown"
    assert "no difference shown" in finding_words(f)
    assert f.resolve is not None
    assert f.resolve.repeats is not None
    assert f.resolve.repeats > 4
    assert f"{f.resolve.repeats} repeats would resolve 2 %" in finding_words(f)


def test_shown_and_yet_small() -> None:
    f = plain([10.05, 10.06, 10.04], [10.0, 10.01, 9.99])
    assert (f.verdict, f.within_margin) == ("higher", True)
    assert finding_words(f).endswith("within the margin of 2 %")


def test_one_repeat_says_nothing_by_itself() -> None:
    f = plain([9.0], [10.0])
    assert f.verdict == "no_interval"
    assert finding_words(f) == "ITL mean: a 9.00, b 10.0; one repeat gives no interval"
    assert needed_words(f) == ""


def test_names_may_be_swapped() -> None:
    ours, theirs = [10.0, 10.3, 9.9, 10.1], [10.6, 10.5, 10.4, 10.9]
    one, other = plain(ours, theirs, pairs=3), plain(theirs, ours, pairs=3)
    assert one.interval.low == pytest.approx(-other.interval.high)
    assert {one.verdict, other.verdict} == {"lower", "higher"} or one.verdict == other.verdict


def test_more_pairs_are_wider() -> None:
    ours, theirs = [10.0, 10.3, 9.9, 10.1], [10.6, 10.5, 10.4, 10.9]
    one, ten = plain(ours, theirs), plain(ours, theirs, pairs=10)
    assert ten.interval.low < one.interval.low
    assert ten.alone == one.alone == one.interval


def test_a_number_that_is_not_known() -> None:
    f = plain([math.nan, 9.0], [10.0, 10.0])
    assert f.verdict == "no_interval"
    assert plain([0.0, 9.0], [10.0, 10.0]).verdict == "no_interval"


def test_nothing_varies() -> None:
    f = plain([10.0, 10.0], [10.0, 10.0])
    assert f.verdict == "equal"


def test_shares_are_compared_in_points() -> None:
    rows = [(Number(x), Number(y)) for x, y in [(0.99, 0.90), (0.98, 0.89), (0.985, 0.9)]]
    f = finding_of(MEASURES["answered_share.mean"], "a", "b", rows, NOTHING, 0.02, 1)
    assert f.verdict == "higher"
    assert "8.83 points higher" in finding_words(f)


def test_many_pairs_are_said_together() -> None:
    lower = plain([9.0, 9.1, 8.9, 9.05], [10.0, 10.1, 9.95, 10.0])
    equal = plain([10.0, 10.1, 9.9, 10.02], [10.01, 10.08, 9.91, 10.01])
    unknown = plain([10.0, 10.6, 9.3, 10.4], [10.2, 9.8, 10.1, 9.9])
    assert len(pair_sentences([lower, equal, unknown])) == 3
    first, second, third = pair_sentences([lower, equal, unknown, unknown])
    assert "9.99 % lower" in first
    assert second == "ITL mean: shown equal within 2 %: a and b."
    assert third.startswith("ITL mean: no difference shown between a and b, a and b; ")
    assert third.endswith("repeats would resolve 2 %, pair by pair.")
    each = [replace(unknown, a=a, b=b) for a, b in ("ab", "ac", "ad", "bc", "bd", "cd")]
    assert pair_sentences(each)[0].startswith("ITL mean: no difference shown between any two of a, b, c, d; ")
    assert "between a and b, a and c, a and d, b and c, b and d; " in pair_sentences(each[:-1])[0]
    none = plain([9.0], [10.0])
    assert pair_sentences([none, none]) == ["ITL mean: one repeat gives no interval; a 9.00, b 10.0."]


# -- planted experiments ------------------------------------------------------------------------------------------

SHIFT = -0.03
"""True difference of the logarithms."""
MEMORY = 8
"""Stretches of the trace that remember each other."""


def wave(rng: np.random.Generator, sigma: float) -> np.ndarray:
    """A slow swing along the trace, float64[requests]."""
    keep = math.exp(-1 / MEMORY)
    x = np.empty(UNITS)
    x[0] = rng.standard_normal()
    for i in range(1, UNITS):
        x[i] = keep * x[i - 1] + math.sqrt(1 - keep**2) * rng.standard_normal()
    return sigma * x[UNIT]


@cache
def blocks(span: int) -> Draws:
    """Drawn once for all experiments: what is fresh in each is the data."""
    return draws([], UNITS, span)


def experiment(
    rng: np.random.Generator, repeats: int, machine_noise: float = 0.01
) -> tuple[Finding, float, float]:
    """Two policies on a trace that is itself drawn; their finding, and the difference on this very trace.

    Each stretch of the trace has a level that both share and one of each policy's own; each repeat a level that both
    share and a small one of each run; each request noise.
    """
    common = wave(rng, 0.3)
    mine = [common + wave(rng, 0.04), SHIFT + common + wave(rng, 0.04)]
    here = math.log(np.exp(mine[1]).mean()) - math.log(np.exp(mine[0]).mean())
    rows = []
    naive = []
    for _ in range(repeats):
        machine = 0.05 * rng.standard_normal()
        b, a = (
            np.exp(x + machine + machine_noise * rng.standard_normal() + 0.05 * rng.standard_normal(REQUESTS))
            for x in mine
        )
        rows.append((number(a), number(b)))
        naive.append((np.log(a).var() / REQUESTS + np.log(b).var() / REQUESTS) / repeats)
    differences = [x.figure.influence - y.figure.influence for x, y in rows if x.figure and y.figure]
    series = np.mean(differences, axis=0)
    found = finding_of(ITL, "a", "b", rows, blocks(max(2 * MEMORY, block_length(series))), 0.02, 1)
    return found, here, math.sqrt(float(np.sum(naive) / repeats))


def test_traffic_is_wider_than_this_trace() -> None:
    found, here, _ = experiment(np.random.default_rng(5), 4)
    assert found.alone.low < here < found.alone.high
    assert found.traffic.low < SHIFT < found.traffic.high
    assert found.traffic.standard_error > found.alone.standard_error
    assert traffic_words(found) == ""  # where nothing is shown here, nothing is said of elsewhere
    sure = replace(
        found, interval=found.alone if not found.alone.covers_zero else student(-0.03, 0.001, 9, "seeds")
    )
    assert "other traffic" in traffic_words(sure)


@pytest.mark.proof
@pytest.mark.parametrize("repeats", [3, 6])
def test_intervals_hold_as_often_as_they_say(repeats: int) -> None:
    """95 % intervals: those over repeats hold this trace's difference, those with blocks that of all such traffic."""
    rng = np.random.default_rng(repeats)
    trials = 300
    this_trace = traffic = too_sure = unpaired = 0
    for _ in range(trials):
        found, here, apart = experiment(rng, repeats)
        this_trace += found.alone.low <= here <= found.alone.high
        traffic += found.traffic.low <= SHIFT <= found.traffic.high
        too_sure += found.alone.low <= SHIFT <= found.alone.high
        unpaired += abs(found.alone.mean - SHIFT) < 1.96 * apart
    assert 0.92 < this_trace / trials < 0.98
    assert 0.91 < traffic / trials < 0.98
    assert too_sure / trials < 0.88  # repeats of one trace know nothing of other traffic
    assert unpaired / trials < 0.85  # nor do its requests, taken as independent


@pytest.mark.proof
def test_one_run_knows_other_traffic_but_not_other_runs() -> None:
    rng = np.random.default_rng(1)
    held = {0.0: 0, 0.01: 0}
    for noise in held:
        for _ in range(200):
            found, _, _ = experiment(rng, 1, noise)
            assert found.alone == found.traffic
            held[noise] += found.traffic.low <= SHIFT <= found.traffic.high
    assert held[0.0] / 200 > 0.91
    assert held[0.01] / 200 < 0.88
