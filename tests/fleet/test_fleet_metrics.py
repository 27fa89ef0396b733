"""Latencies, goodput and rates against a naive recomputation from the frame of requests, and by hand."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import fleet_runs as runs
import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.fleet import Deployment, FleetResult, RequestMetrics, Slo
from equipoise.replay import Percentiles
from equipoise.replay.layout import SERIES


def naive_percentile(values: list[float], percent: float) -> float:
    """Between the two neighbours, in proportion."""
    values = sorted(values)
    at = (len(values) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def naive_percentiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = {f"p{p}": naive_percentile(values, p) for p in (50, 90, 95, 99)}
    return {"count": len(values), "mean": sum(values) / len(values), **found}


def naive(result: FleetResult, rows: list[dict[str, Any]]) -> dict[str, Any]:
    first, last = result.counted_s
    span, slo = last - first, result.deployment.slo
    good = [r for r in rows if r["status"] == "finished" and first < r["first_token_s"] <= last]
    bad = [
        r
        for r in rows
        if first < r["ended_s"] <= last
        and (
            r["status"] in ("rejected", "failed")
            or (r["status"] == "aborted" and math.isnan(r["first_token_s"]))
        )
    ]
    met, met_tokens = 0, 0
    for r in good:
        ttft = 1e3 * (r["first_token_s"] - r["arrived_s"])
        tpot = 1e3 * (r["ended_s"] - r["first_token_s"]) / max(r["tokens"] - 1, 1)
        if (slo.ttft_ms is None or ttft <= slo.ttft_ms) and (slo.tpot_ms is None or tpot <= slo.tpot_ms):
            met, met_tokens = met + 1, met_tokens + r["tokens"]
    long = [r for r in good if r["tokens"] > 1]
    once = [r for r in good if r["losses"] == 0]

    def ms(chosen: list[dict[str, Any]], begin: str, end: str) -> dict[str, float] | None:
        return naive_percentiles([1e3 * (r[end] - r[begin]) for r in chosen])

    return {
        "requests": len(good),
        "refused": len(bad),
        "ttft_ms": ms(good, "arrived_s", "first_token_s"),
        "tpot_ms": naive_percentiles(
            [1e3 * (r["ended_s"] - r["first_token_s"]) / (r["tokens"] - 1) for r in long]
        ),
        "mean_itl_ms": 1e3
        * sum(r["ended_s"] - r["first_token_s"] for r in good)
        / sum(r["tokens"] - 1 for r in good)
        if long
        else None,
        "end_to_end_ms": ms(good, "arrived_s", "ended_s"),
        "before_queue_ms": ms(once, "arrived_s", "queued_s"),
        "queue_wait_ms": ms(once, "queued_s", "start_s"),
        "requests_per_s": len(good) / span,
        "tokens_per_s": sum(r["tokens"] for r in good) / span,
        "goodput": {
            "requests": met,
            "requests_per_s": met / span,
            "tokens_per_s": met_tokens / span,
            "share": met / (len(good) + len(bad)) if good or bad else math.nan,
        },
    }


def same(found: RequestMetrics, expected: dict[str, Any]) -> None:
    for field in fields(RequestMetrics):
        value, wanted = getattr(found, field.name), expected[field.name]
        if wanted is None or not isinstance(wanted, dict):
            assert value == pytest.approx(wanted, rel=1e-9), field.name
            continue
        assert value is not None, field.name
        for name, number in wanted.items():
            assert getattr(value, name) == pytest.approx(number, rel=1e-9, abs=1e-9, nan_ok=True), (
                field.name,
                name,
            )


@pytest.mark.parametrize("name", runs.NAMES)
def test_all_requests_against_a_naive_recomputation(name: str) -> None:
    result = runs.known(name)
    rows = result.requests_frame().rows(named=True)
    found = result.requests
    assert found is not None
    assert found.requests > 40
    same(found, naive(result, rows))


def test_the_runs_show_what_is_measured() -> None:
    """Or the tests above would pass on nothing."""
    stormy = runs.known("stormy")
    found = stormy.requests
    assert found is not None
    assert found.refused > 0
    assert found.goodput is not None
    assert 0 < found.goodput.requests < found.requests
    assert {"aborted", "lost", "preemptions"} <= {k for k, v in stormy.counts.items() if v}
    frame = stormy.requests_frame()
    assert frame["losses"].sum() == stormy.counts["lost"]
    prefill = runs.known("prefill").requests
    assert prefill is not None
    assert prefill.before_queue_ms is not None
    assert prefill.before_queue_ms.p50 > 1.0


@pytest.mark.parametrize("name", runs.NAMES)
@pytest.mark.parametrize("by", ["context", "output", "turn"])
def test_classes_against_a_naive_recomputation(name: str, by: Any) -> None:
    result = runs.known(name)
    rows = result.requests_frame().rows(named=True)

    def class_of(row: dict[str, Any]) -> str:
        if by == "turn":
            return "first turn" if row["turn"] == 0 else "later turns"
        low, high = {"context": (3000, 12_500), "output": (5, 30)}[by]
        value = row[f"{by}_tokens"]
        words = {3000: "3k", 12_500: "12500", 5: "5", 30: "30"}
        if value < low:
            return f"0-{words[low]}"
        return f"{words[low]}-{words[high]}" if value < high else f"{words[high]}+"

    bounds = {"context": (3000, 12_500), "output": (5, 30), "turn": None}[by]
    found = result.by_class(by, bounds)
    for label, measured in found.items():
        same(measured, naive(result, [r for r in rows if class_of(r) == label]))
    assert {class_of(r) for r in rows} <= set(found)
    assert sum(m.requests for m in found.values()) == result.requests.requests  # type: ignore[union-attr]


def test_labels_of_ones_own() -> None:
    result = runs.by_hand()
    found = result.by_class(["b", "a", "b", "a", "a", "b", "a"])
    assert list(found) == ["a", "b"]
    assert found["a"].requests == 1
    assert found["b"].requests == 2
    numbers = result.by_class(np.array([10, 9, 10, 9, 9, 10, 9]))
    assert list(numbers) == ["9", "10"], "labels keep their own order"
    assert numbers["10"] == found["b"]


def test_by_hand() -> None:
    found = runs.by_hand().requests
    assert found is not None
    assert found.requests == 3
    assert found.refused == 2
    assert found.ttft_ms == Percentiles(3, *[pytest.approx(v) for v in (5000 / 3, 2000, 2000, 2000, 2000)])
    assert found.tpot_ms == Percentiles(2, *[pytest.approx(v) for v in (750, 750, 950, 975, 995)])
    assert found.mean_itl_ms == pytest.approx(1000 * (3 + 5) / (3 + 10))
    assert found.end_to_end_ms is not None
    assert found.end_to_end_ms.mean == pytest.approx(1000 * (4 + 2 + 7) / 3)
    assert found.before_queue_ms is not None, "of the two that were never lost"
    assert (found.before_queue_ms.count, found.before_queue_ms.mean) == (2, pytest.approx(500))
    assert found.queue_wait_ms is not None
    assert (found.queue_wait_ms.count, found.queue_wait_ms.mean) == (2, pytest.approx(375))
    assert found.requests_per_s == pytest.approx(0.3)
    assert found.tokens_per_s == pytest.approx(1.6)
    assert found.goodput is not None
    assert found.goodput.requests == 1
    assert found.goodput.requests_per_s == pytest.approx(0.1)
    assert found.goodput.tokens_per_s == pytest.approx(0.4)
    assert found.goodput.share == pytest.approx(1 / 5)


def test_classes_begin_at_their_bounds() -> None:
    found = runs.by_hand().by_class("context")
    assert list(found) == ["0-8k", "8k-32k", "32k-128k", "128k+"]
    assert [m.requests for m in found.values()] == [1, 2, 0, 0]
    assert [m.refused for m in found.values()] == [1, 0, 1, 0]
    assert found["128k+"].goodput is not None
    assert math.isnan(found["128k+"].goodput.share)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_ms=0.0), 0),
        (Slo(ttft_ms=2000.0), 3),
        (Slo(tpot_ms=0.0), 1),  # the one of a single token
        (Slo(tpot_ms=500.0), 2),
        (Slo(ttft_ms=1000.0, tpot_ms=999.0), 0),
        (Slo(), None),
    ],
)
def test_every_bound_must_be_met(slo: Slo, good: int | None) -> None:
    result = replace(runs.by_hand(), deployment=Deployment(runs.POOL, slo=slo))
    found = result.goodput
    assert (found.requests if found else None) == good


def test_nobody_counts() -> None:
    base = runs.by_hand()
    result = replace(base, more=base.more._replace(status=np.full(7, 2, np.int32)))
    found = result.requests
    assert found is not None
    assert found.requests == 0
    for name in ("ttft_ms", "tpot_ms", "mean_itl_ms", "end_to_end_ms", "before_queue_ms", "queue_wait_ms"):
        assert getattr(found, name) is None
        assert getattr(result, name) is None
    assert found.tokens_per_s == 0
    assert found.goodput is not None
    assert found.goodput.share == 0  # two were refused


def test_the_window_is_open_at_its_begin_and_closed_at_its_end() -> None:
    base = runs.by_hand()
    first_s = base.more.first_s.copy()
    first_s[0], first_s[1] = 1.0, 11.0
    ended_s = np.maximum(base.more.ended_s, np.nan_to_num(first_s))
    result = replace(base, more=base.more._replace(first_s=first_s, ended_s=ended_s))
    assert result.requests is not None
    assert result.requests.requests == 2


def test_requests_that_were_not_kept() -> None:
    kept = runs.known("plain")
    result = runs.run(runs.DEPLOYMENTS["plain"], keep_requests=False)
    assert not result.requests_kept
    for name in (
        "requests",
        "ttft_ms",
        "tpot_ms",
        "mean_itl_ms",
        "end_to_end_ms",
        "queue_wait_ms",
        "goodput",
    ):
        assert getattr(result, name) is None
    for ask in (result.requests_frame, lambda: result.by_class("turn")):
        with pytest.raises(InputError, match="keep_requests=True"):
            ask()
    assert result.running_step_ms == kept.running_step_ms
    assert result.tokens_per_s == kept.tokens_per_s
    assert result.parts == kept.parts


@pytest.mark.parametrize(
    ("by", "bounds", "says"),
    [
        ("size", None, "use one of context, output, turn"),
        ("context", (), "rise"),
        ("context", (0, 5), "above 0"),
        ("output", (5, 5), "rise"),
        (["a"], None, "one for each of 7"),
    ],
)
def test_classes_that_are_none(by: Any, bounds: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        runs.by_hand().by_class(by, bounds)


@pytest.mark.parametrize("name", runs.NAMES)
def test_running_step_weighs_steps_by_their_requests(name: str) -> None:
    result = runs.known(name)
    seen: list[float] = []
    for row in result.counted_series:
        decoding = round(row[SERIES.MEAN_BATCH] * result.pool.ranks)
        seen += [row[SERIES.COST] * result.cost.us_per_unit / 1000] * decoding
    found = result.running_step_ms
    assert found is not None
    assert found.count == result.counted_steps
    assert found.mean == pytest.approx(np.mean(seen))
    for p in (50, 90, 95, 99):
        assert getattr(found, f"p{p}") == pytest.approx(np.percentile(seen, p, method="inverted_cdf"))


@pytest.mark.parametrize("name", runs.NAMES)
def test_parts_add_up(name: str) -> None:
    result = runs.known(name)
    assert sum(result.parts.values()) == pytest.approx(result.mean_cost)
    assert sum(result.part_shares.values()) == pytest.approx(1.0)
    if name == "stormy":
        assert result.parts["overhead"] == pytest.approx(200.0 / result.cost.us_per_unit)


def test_rates() -> None:
    result = runs.run(Deployment(replace(runs.POOL, instances=1)))
    frame = result.requests_frame()
    assert result.simulated_s == pytest.approx(frame["ended_s"].max())
    assert result.placements_per_s == pytest.approx(len(frame) / result.simulated_s)
    assert result.decisions_per_s == pytest.approx(result.counts["decisions"] / result.wall_s)


def test_frames() -> None:
    result = runs.known("stormy")
    frame = result.requests_frame()
    assert frame.height == len(result.context_tokens)
    counts = dict(frame["status"].value_counts().iter_rows())
    for word in ("aborted", "failed", "rejected", "dropped"):
        assert counts.get(word, 0) == result.counts[word]
    assert counts["finished"] == result.finished
    assert frame["turn"].to_list() == runs.workload().turn.tolist()
    steps = result.to_polars()
    assert steps["length_s"].to_numpy() == pytest.approx(steps["cost"].to_numpy() * 1e-6)
    assert steps["steps"].sum() == result.steps


def test_a_narrower_window() -> None:
    result = runs.known("prefill")
    whole = result.counted_between(*result.counted_s)
    assert isinstance(whole, FleetResult)
    assert whole.excess == pytest.approx(result.excess)
    assert whole.tokens_per_s == pytest.approx(result.tokens_per_s)
    assert all(math.isnan(v) for v in whole.parts.values())
    first, last = result.counted_s
    part = result.counted_between(first, (first + last) / 2)
    assert part.tokens_per_s == pytest.approx(result.tokens_per_s, rel=0.3)
    assert part.requests is not None
    assert result.requests is not None
    assert part.requests.requests < result.requests.requests


def test_the_repr_says_what_it_is() -> None:
    assert repr(runs.known("plain")).startswith("FleetResult(small, dualpath")
