"""Laws of the transforms: what must survive, and what must change."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_cases import assert_same, blocks_of, traces

from equipoise.errors import TraceError
from equipoise.traces import (
    Trace,
    assign_session_starts,
    cycle,
    detect_tick,
    head,
    prefill_delay,
    reinterleave,
    scale_rate,
    spread_ticks,
    synth,
)

quick = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 5)


def rows(trace: Trace, *, times: bool = False) -> Counter[tuple[object, ...]]:
    """The requests as a bag, without their arrival unless asked for."""
    blocks = blocks_of(trace) or [[]] * len(trace)
    columns = [trace.context_tokens, trace.output_tokens, trace.session, trace.turn, trace.think_s]
    if times:
        columns.append(trace.arrival_s)
    return Counter(
        (*values, *map(int, ids)) for *values, ids in zip(*(c.tolist() for c in columns), blocks, strict=True)
    )


def sessions_of(trace: Trace) -> dict[int, list[tuple[float, int, int]]]:
    """Offset, turn and context of every session's rows, in row order."""
    result: dict[int, list[tuple[float, int, int]]] = {}
    for at, session, turn, context in zip(
        *(c.tolist() for c in (trace.arrival_s, trace.session, trace.turn, trace.context_tokens)), strict=True
    ):
        if session >= 0:
            result.setdefault(session, []).append((at, turn, context))
    return {
        s: [(at - items[0][0], turn, context) for at, turn, context in items] for s, items in result.items()
    }


def assert_same_sessions(a: Trace, b: Trace) -> None:
    one, two = sessions_of(a), sessions_of(b)
    assert one.keys() == two.keys()
    for session, items in one.items():
        gaps = [[x[0] for x in items], [x[0] for x in two[session]]]
        np.testing.assert_allclose(
            gaps[0], gaps[1], rtol=0, atol=1e-6 * (1 + a.arrival_s[-1] + b.arrival_s[-1])
        )
        assert Counter(x[1:] for x in items) == Counter(x[1:] for x in two[session])


@quick
@given(traces(), seeds, st.sampled_from(["poisson", "gamma"]))
def test_session_starts_keep_the_sessions_whole(trace: Trace, seed: int, process: str) -> None:
    placed = assign_session_starts(trace, seed, process=process)  # type: ignore[arg-type]
    assert rows(placed) == rows(trace)
    assert placed.arrival_s[0] == 0
    assert_same_sessions(trace, placed)
    assert_same(placed, assign_session_starts(trace, seed, process=process))  # type: ignore[arg-type]


@quick
@given(traces(), seeds, st.floats(1e-3, 1e3))
def test_a_window_cuts_sessions_but_loses_nothing(trace: Trace, seed: int, rate_per_s: float) -> None:
    window = assign_session_starts(trace, seed, rate_per_s=rate_per_s)
    span_s = len(trace) / rate_per_s
    assert window.arrival_s[-1] <= span_s * (1 + 1e-9)
    bag = Counter((c, o, t) for c, o, _, t, *_ in rows(trace).elements())
    assert Counter((c, o, t) for c, o, _, t, *_ in rows(window).elements()) == bag
    # every part keeps the order of its turns; requests without a session stay without
    for items in sessions_of(window).values():
        assert [turn for _, turn, _ in items] == sorted(turn for _, turn, _ in items)
    assert (window.session < 0).sum() == (trace.session < 0).sum()


def agent_sessions(count: int = 300, seed: int = 0) -> Trace:
    """Sessions as a reader hands them over: all begin at 0, 1 to 60 turns of a minute, contexts that grow."""
    rng = np.random.default_rng(seed)
    turns = rng.integers(1, 60, count)
    session = np.repeat(np.arange(count), turns)
    turn = np.concatenate([np.arange(n) for n in turns])
    order = np.argsort(turn, kind="stable")
    context = (1000 + 500 * turn).astype(np.int64)
    return Trace.from_columns(
        "agents",
        60.0 * turn[order],
        context[order],
        np.full(len(turn), 100),
        session=session[order],
        turn=turn[order].astype(np.int32),
        think_s=np.full(len(turn), 57.5),
        arrivals_known=False,
    )


def open_sessions(trace: Trace, at_s: np.ndarray) -> np.ndarray:
    first, last = {}, {}
    for s, t in zip(trace.session.tolist(), trace.arrival_s.tolist(), strict=True):
        first.setdefault(s, t)
        last[s] = t
    begin, end = np.sort(list(first.values())), np.sort(list(last.values()))
    return np.searchsorted(begin, at_s, side="right") - np.searchsorted(end, at_s, side="left")


def test_open_sessions_and_contexts_are_stationary_where_starts_are_drawn() -> None:
    trace = assign_session_starts(agent_sessions(3000), seed=1)
    span = trace.arrival_s[-1]
    counts = open_sessions(trace, np.linspace(0.05, 0.95, 200) * span)
    assert counts.mean() == pytest.approx(3000 / 30, rel=0.1)
    halves = counts[:100].mean(), counts[100:].mean()
    assert halves[0] == pytest.approx(halves[1], rel=0.1)
    means = [part.mean() for part in np.array_split(trace.context_tokens, 10)]
    assert max(means[1:-1]) / min(means[1:-1]) < 1.1
    assert max(means) / min(means) < 1.25  # the ramps
    # unlike the input, in which all sessions begin together
    means = [part.mean() for part in np.array_split(agent_sessions(3000).context_tokens, 10)]
    assert max(means) / min(means) > 5


def test_a_window_is_stationary_from_its_first_request_at_any_rate() -> None:
    trace = assign_session_starts(agent_sessions(3000), seed=1, rate_per_s=2000.0)
    assert len(trace) / trace.arrival_s[-1] == pytest.approx(2000, rel=0.01)
    means = [part.mean() for part in np.array_split(trace.context_tokens, 10)]
    assert max(means) / min(means) < 1.05
    first_turns = trace.turn == 0
    assert first_turns.sum() == 3000  # every session begins once, somewhere


def test_gamma_starts_are_burstier() -> None:
    singles = Trace.from_columns("s", np.zeros(5000), np.ones(5000, np.int64), np.ones(5000, np.int64))

    def cv(process: str, value: float) -> float:
        gaps = np.diff(assign_session_starts(singles, 0, process=process, cv=value).arrival_s)  # type: ignore[arg-type]
        return float(gaps.std() / gaps.mean())

    assert cv("poisson", 2.0) == pytest.approx(1.0, abs=0.1)
    assert cv("gamma", 3.0) == pytest.approx(3.0, rel=0.15)


@quick
@given(traces(), seeds)
def test_reinterleaving_keeps_rows_sessions_and_span(trace: Trace, seed: int) -> None:
    mixed = reinterleave(trace, seed)
    assert rows(mixed) == rows(trace)
    assert mixed.arrival_s[-1] <= trace.arrival_s[-1] - trace.arrival_s[0] + 1e-6 * (1 + trace.arrival_s[-1])
    assert_same_sessions(trace, mixed)
    assert_same(mixed, reinterleave(trace, seed))


def test_blocks_of_consecutive_requests_stay_together() -> None:
    n = 4096
    trace = Trace.from_columns("x", np.arange(n) * 0.5, np.arange(1, n + 1), np.ones(n, np.int64))
    mixed = reinterleave(trace, 3)
    steps = np.diff(mixed.context_tokens)
    assert (steps == 1).sum() == n - n // 128  # inside blocks all is as it was
    assert mixed.context_tokens.tolist() != trace.context_tokens.tolist()
    assert not np.array_equal(mixed.context_tokens, reinterleave(trace, 4).context_tokens)


@quick
@given(traces(), st.integers(1, 100), seeds)
def test_cycling_repeats_every_request_alike(trace: Trace, wanted: int, seed: int) -> None:
    long = cycle(trace, wanted, seed)
    assert len(long) == wanted
    n = len(trace)
    times = Counter(zip(long.context_tokens.tolist(), long.output_tokens.tolist(), strict=True))
    once = Counter(zip(trace.context_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    for pair, count in once.items():
        assert count * (wanted // n) <= times[pair] <= count * -(-wanted // n)
    if seed == 0:
        assert_same(head(long, min(n, wanted)), head(trace, wanted))
    # a session belongs to one pass
    for k in range(0, wanted, n):
        inside = set(long.session[k : k + n].tolist()) - {-1}
        assert not inside & (set(long.session[k + n :].tolist()) - {-1})


@quick
@given(traces(), seeds)
def test_every_pass_is_a_new_mix_of_the_same_sessions(trace: Trace, seed: int) -> None:
    n = len(trace)
    long = cycle(trace, 3 * n, seed)
    numbers = int(trace.session.max()) + 1
    for k in range(3):
        part = head(long, (k + 1) * n)
        part = part.take(slice(k * n, (k + 1) * n))
        sessions = np.where(part.session >= 0, part.session - k * numbers, -1)
        assert_same_sessions(trace, part.take(slice(None), session=sessions))


def test_passes_share_no_prefix_blocks() -> None:
    blocks = st.lists(st.integers(-5, 5), min_size=1)
    trace = synth("chat-short", requests=3)
    from equipoise.traces import PrefixBlocks

    prefix = PrefixBlocks(np.array([0, 1, 2, 3]), np.array([-5, 4, -5]), 16)
    trace = trace.take(slice(None), prefix=prefix)
    ids = [blocks_of(head(cycle(trace, 9), 9))[i] for i in range(9)]  # type: ignore[index]
    for k in range(3):
        mine = {i for row in ids[3 * k : 3 * k + 3] for i in row}
        assert len(mine) == 2
        assert not mine & {i for row in ids[3 * k + 3 :] for i in row}
    assert blocks is not None


@quick
@given(traces(), st.floats(1e-3, 1e3))
def test_scaling_the_rate_scales_time(trace: Trace, factor: float) -> None:
    scaled = scale_rate(trace, factor)
    np.testing.assert_array_equal(scaled.arrival_s, trace.arrival_s / factor)
    assert rows(scaled) == rows(trace)


@quick
@given(traces(), st.floats(0, 100), st.floats(0, 1e-3))
def test_prefill_delays_each_request_by_its_own(trace: Trace, fixed_s: float, per_token_s: float) -> None:
    delayed = prefill_delay(trace, fixed_s, per_token_s)
    wanted = np.sort(trace.arrival_s + fixed_s + per_token_s * trace.context_tokens)
    np.testing.assert_allclose(delayed.arrival_s, wanted - wanted[0], rtol=1e-9, atol=1e-9)
    assert rows(delayed) == rows(trace)
    if per_token_s == 0:
        assert_same(
            delayed.take(slice(None), prefix=None),
            trace.take(slice(None), prefix=None, arrival_s=delayed.arrival_s),
        )


@quick
@given(st.integers(20, 200), st.floats(0.01, 10), seeds)
def test_a_tick_is_found_and_spread(n: int, tick_s: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = np.sort(np.concatenate([rng.integers(0, n // 8 + 3, n), [0, 1, 2] * 2]))
    jitter = rng.uniform(-0.001, 0.001, n // 8 + 4)[steps] * tick_s
    arrival_s = steps * tick_s + np.where(steps > 0, jitter, 0.0)
    ones = np.ones(len(steps), np.int64)
    trace = Trace.from_columns("t", arrival_s, np.arange(1, len(steps) + 1), ones)
    found = detect_tick(trace)
    assert found == pytest.approx(tick_s, rel=0.01)
    spread = spread_ticks(trace, seed=seed)
    assert detect_tick(spread) is None
    # in the order of the file but for the jitter, and nobody leaves the tick by more than it
    order = spread.context_tokens - 1
    assert np.abs(order - np.arange(len(order))).max() <= n
    moved = spread.arrival_s + (trace.arrival_s[order] - spread.arrival_s).min() - trace.arrival_s[order]
    assert moved.min() >= -tick_s - 1e-9
    assert moved.max() <= tick_s + 1e-9
    assert not np.array_equal(spread.arrival_s, spread_ticks(trace, seed=seed + 1).arrival_s)


def test_traces_without_a_tick_stay_as_they_are() -> None:
    for name in ("chat-long", "code-completion"):
        trace = synth(name, requests=2000)
        assert detect_tick(trace) is None
        assert spread_ticks(trace) is trace


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_sizes_and_factors_are_checked(bad: float) -> None:
    trace = synth("chat-short", requests=5)
    for call in (
        lambda: scale_rate(trace, bad),
        lambda: spread_ticks(trace, bad),
        lambda: assign_session_starts(trace, rate_per_s=bad),
        lambda: assign_session_starts(trace, process="gamma", cv=bad),
    ):
        with pytest.raises(TraceError, match="expected a finite number above 0"):
            call()
    for count in (bad, 2.5, True):
        for sized in (head, cycle):
            with pytest.raises(TraceError, match="expected a whole number, at least 1"):
                sized(trace, count)
    with pytest.raises(TraceError, match="is not a delay"):
        prefill_delay(trace, -1.0 if bad == 0 else bad)
    with pytest.raises(TraceError, match="seed = -1"):
        reinterleave(trace, -1)
    with pytest.raises(TraceError, match="expected poisson or gamma"):
        assign_session_starts(trace, process="weibull")  # type: ignore[arg-type]
