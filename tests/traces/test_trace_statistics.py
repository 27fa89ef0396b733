"""Statistics against slow, obvious twins and against planted values."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from trace_cases import blocks_of, traces

from equipoise.traces import PrefixBlocks, Trace, describe

quick = settings(max_examples=80, deadline=None)


def simple(
    context: list[int], output: list[int], arrival: list[float] | None = None, **more: object
) -> Trace:
    times = np.zeros(len(context)) if arrival is None else np.array(arrival)
    return Trace.from_columns("x", times, np.array(context), np.array(output), **more)  # type: ignore[arg-type]


def short_outputs(trace: Trace) -> Trace:
    return trace.take(slice(None), output_tokens=trace.output_tokens % 50 + 1, prefix=trace.prefix)


@quick
@given(traces())
def test_decode_is_the_mean_over_every_step(trace: Trace) -> None:
    trace = short_outputs(trace)
    steps = np.repeat(trace.context_tokens + trace.output_tokens / 2, trace.output_tokens)
    decode = describe(trace).decode
    assert decode.mean == pytest.approx(steps.mean())
    assert decode.cv == pytest.approx(steps.std() / steps.mean(), abs=1e-9)
    ordered = np.sort(steps)
    for share, got in ((0.5, decode.p50), (0.9, decode.p90), (0.99, decode.p99)):
        # the smallest value that at least this share of the steps do not exceed (or its neighbour, by rounding)
        rank = int(np.ceil(share * len(ordered)))
        assert ordered[max(rank - 2, 0)] <= got <= ordered[min(rank, len(ordered) - 1)]


@quick
@given(traces())
def test_prefix_hits_are_those_of_a_set_that_never_forgets(trace: Trace) -> None:
    share = describe(trace).prefix_hit_share
    blocks = blocks_of(trace)
    if blocks is None:
        assert share is None
        return
    assert trace.prefix is not None
    seen: set[int] = set()
    hit = 0
    for ids, context in zip(blocks, trace.context_tokens.tolist(), strict=True):
        leading = 0
        for i in ids:
            if i not in seen:
                break
            leading += 1
        hit += min(leading * trace.prefix.block_tokens, context)
        seen.update(ids)
    assert share == pytest.approx(hit / trace.context_tokens.sum())


@quick
@given(traces())
def test_everything_is_plain_json(trace: Trace) -> None:
    text = json.dumps(describe(trace).to_dict(), allow_nan=False)
    assert json.loads(text)["schema"] == "equipoise.trace-info/1"


def test_planted_arrivals() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    ones = np.ones(n, np.int64)
    poisson = np.cumsum(rng.exponential(0.1, n))
    a = describe(Trace.from_columns("p", poisson - poisson[0], ones, ones)).arrivals
    assert a.rate_per_s == pytest.approx(10, rel=0.03)
    assert a.gap_cv == pytest.approx(1, abs=0.03)
    assert a.counts_variance_over_mean == pytest.approx(1, abs=0.6)
    regular = describe(Trace.from_columns("r", np.arange(n) * 0.1, ones, ones)).arrivals
    assert regular.gap_cv == pytest.approx(0, abs=1e-6)
    assert regular.counts_variance_over_mean == pytest.approx(0, abs=0.01)
    assert regular.span_s == pytest.approx((n - 1) * 0.1)
    ticks = describe(Trace.from_columns("t", np.floor(poisson / 3) * 3, ones, ones)).arrivals
    assert ticks.tick_s == 3.0


def test_single_requests_and_equal_arrivals_have_no_rate() -> None:
    for trace in (simple([5], [1]), simple([5, 5], [1, 2])):
        s = describe(trace)
        assert s.arrivals.rate_per_s is None
        assert s.arrivals.gap_cv is None
        assert s.arrivals.counts_variance_over_mean is None
        assert s.log_correlation is None
        assert s.sessions is None


def test_shares_and_correlation() -> None:
    s = describe(simple([32_768, 32_769, 100_000, 100_001], [1, 2, 4, 8]))
    assert (s.share_above_32k, s.share_above_100k) == (0.75, 0.25)
    x = [1, 10, 100, 1000]
    assert describe(simple(x, x)).log_correlation == pytest.approx(1)
    assert describe(simple(x, x[::-1])).log_correlation == pytest.approx(-1)


def test_sessions_seen_from_the_middle_are_counted() -> None:
    trace = simple(
        [1] * 6,
        [1] * 6,
        [0, 1, 2, 3, 4, 5],
        session=np.array([7, 8, 7, -1, 8, 7]),
        turn=np.array([0, 3, 1, 0, 4, 2], np.int32),
        think_s=np.array([0, 9, 2, 0, 4, 6.0]),
    )
    sessions = describe(trace).sessions
    assert sessions is not None
    assert (sessions.count, sessions.in_progress) == (2, 1)
    assert sessions.turns_mean == 2.5
    assert sessions.think_p50_s == pytest.approx(5)


def test_blocks_without_a_repeat() -> None:
    prefix = PrefixBlocks(np.array([0, 2, 2]), np.array([1, 1]), 16)
    assert describe(simple([32, 5], [1, 1], prefix=prefix)).prefix_hit_share == 0
