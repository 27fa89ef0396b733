"""Synthetic sessions: a stationary process of conversations, seen from a random moment on.

At time 0 as many sessions are open as a system that has always been running would show: some have a request in
service (turn-weighted, its output length-biased), some are thinking (weighted by think time). After that, sessions
start by a renewal process, and each goes turn by turn: the next request comes after the answer (`timing.service_s`) and
the think time. Every draw is a function of (seed, field, session, turn), so a session's turns are the same at any rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from equipoise.traces.chunk import CHUNK_REQUESTS, Chunk
from equipoise.traces.distributions import distribution, tokens
from equipoise.traces.streams import Uniforms, generator
from equipoise.traces.timing import SERVER_TPOT_S, service_s
from equipoise.types import Floats, Ints

__all__ = ["mean_turns", "session_chunks"]

IN_SERVICE, THINKING = 1 << 40, 1 << 41
"""Keys of sessions open at time 0 begin here; those that start later count from 0."""
HISTORY_DRAWS = 1 << 20
"""Past turns summed at a time."""


@dataclass(slots=True)
class _Open:
    """Open sessions, one entry each: what the next request will be."""

    key: Ints
    number: Ints
    turn: Ints
    turns: Ints
    context: Ints
    growth_scale: Floats
    next_s: Floats
    think_s: Floats

    def rows(self, which: Any) -> _Open:
        return _Open(*(getattr(self, name)[which] for name in self.__slots__))

    def join(self, other: _Open) -> _Open:
        return _Open(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in self.__slots__))


class _Law:
    """The distributions of a preset and their sub-streams."""

    def __init__(self, name: str, preset: Mapping[str, Any], seed: int) -> None:
        table = preset["sessions"]
        self.table = table
        self.output = distribution(preset["output_tokens"])
        self.first = distribution(table["first_context_tokens"])
        self.growth = distribution(table["growth_tokens"])
        self.think = distribution(table["think_s"])
        self.compacted = distribution(table["compacted_tokens"])
        self.turn_counts = np.arange(1, table["turns"]["high"] + 1)
        self.turn_shares = _turn_shares(table["turns"])
        self._name, self._seed = name, seed
        self._streams: dict[str, Uniforms] = {}

    def u(self, field: str, key: Ints, turn: Ints | int = 0) -> Floats:
        if field not in self._streams:
            self._streams[field] = Uniforms(self._seed, f"{self._name}/{field}")
        return self._streams[field](key, turn)

    def rng(self, field: str) -> np.random.Generator:
        return generator(self._seed, f"{self._name}/{field}")

    def turns(self, u: Floats, weight: Ints | int = 1) -> Ints:
        """Number of turns at probability u, sessions weighted by ``weight`` (one for each number of turns)."""
        shares = np.cumsum(self.turn_shares * weight)
        counts: Ints = self.turn_counts[np.minimum(np.searchsorted(shares, u * shares[-1]), len(shares) - 1)]
        return counts

    def depth(self, turns: Ints) -> Floats:
        """Standard score of a session's number of turns."""
        law = self.table["turns"]
        score: Floats = (np.log(turns) - law["mu"]) / law["sigma"]
        return score

    def first_context(self, key: Ints, depth: Floats) -> Ints:
        """First context, correlated with the number of turns by a Gaussian copula."""
        rho = self.table["start_correlation"]
        score = rho * depth + np.sqrt(1 - rho**2) * ndtri(self.u("first context", key))
        return tokens(self.first(np.clip(ndtr(score), 2.0**-54, 1 - 2.0**-53)))

    def growth_scale(self, depth: Floats) -> Floats:
        scale: Floats = np.exp(-self.table["growth_slope"] * (depth - self.table["growth_center"]))
        return scale

    def grown(self, u: Floats, scale: Floats) -> Ints:
        added: Ints = np.rint(self.growth(u) * scale).astype(np.int64)
        return added

    def capped(self, context: Ints) -> Ints:
        capped: Ints = np.minimum(context, self.table["context_cap_tokens"])
        return capped


def mean_turns(preset: Mapping[str, Any]) -> float:
    """Expected number of turns of a session."""
    table = preset["sessions"]["turns"]
    return float((_turn_shares(table) * np.arange(1, table["high"] + 1)).sum())


def _turn_shares(table: Mapping[str, Any]) -> Floats:
    """Probability of 1 ... high turns: a lognormal rounded to whole turns and cut at ``high``."""
    edges = np.r_[-np.inf, (np.log(np.arange(1, table["high"] + 1) + 0.5) - table["mu"]) / table["sigma"]]
    shares: Floats = np.diff(ndtr(edges))
    shares /= shares.sum()
    return shares


def session_chunks(
    name: str, preset: Mapping[str, Any], seed: int, rate_per_s: float, steady_state: int
) -> Iterator[Chunk]:
    """Endless requests of a preset with sessions.

    Parameters
    ----------
    name, preset, seed, rate_per_s
        As for `request_chunks`; the rate is of requests.
    steady_state : int
        Requests in flight at time 0, which come first; the number a pool would hold is drawn if it is 0, and these
        requests are not part of the trace.
    """
    law = _Law(name, preset, seed)
    session_rate_per_s = rate_per_s / float((law.turn_shares * law.turn_counts).sum())
    rng = law.rng("sessions in progress")
    thinking = rng.poisson(
        session_rate_per_s * float((law.turn_shares * (law.turn_counts - 1)).sum()) * law.think.mean
    )
    in_service = steady_state or int(rng.poisson(rate_per_s * law.output.mean * SERVER_TPOT_S))
    running, now = _in_service(law, in_service)
    if steady_state:
        yield now
    opened = running.join(_thinking(law, thinking, first_number=in_service))
    starts = _starts(law, session_rate_per_s)
    fresh, begun = next(starts), 0
    step_s = CHUNK_REQUESTS / rate_per_s
    end_s = step_s
    while True:
        while fresh[-1] < end_s:
            fresh = np.r_[fresh, next(starts)]
        count = int(np.searchsorted(fresh, end_s))
        if count:
            new = _begin(law, np.arange(begun, begun + count), fresh[:count], in_service + thinking)
            opened = opened.join(new)
            fresh, begun = fresh[count:], begun + count
        chunk, opened = _advance(law, opened, end_s)
        if len(chunk.arrival_s):
            yield chunk
        end_s += step_s


def _starts(law: _Law, rate_per_s: float) -> Iterator[Floats]:
    """Session starts in blocks: a renewal process with Gamma gaps."""
    rng = law.rng("session starts")
    shape = 1.0 / law.table["start_cv"] ** 2
    last_s = 0.0
    while True:
        times = last_s + np.cumsum(rng.standard_gamma(shape, 1024)) / (shape * rate_per_s)
        last_s = float(times[-1])
        yield times


def _begin(law: _Law, key: Ints, start_s: Floats, first_number: int) -> _Open:
    turns = law.turns(law.u("turns", key))
    depth = law.depth(turns)
    zero = np.zeros(len(key), dtype=np.int64)
    context = law.first_context(key, depth)
    return _Open(
        key, key + first_number, zero, turns, context, law.growth_scale(depth), start_s, np.zeros(len(key))
    )


def _in_service(law: _Law, count: int) -> tuple[_Open, Chunk]:
    """Sessions whose request is being served at time 0, and those requests with what is left of them."""
    key = IN_SERVICE + np.arange(count)
    turns = law.turns(law.u("turns", key), law.turn_counts)
    turn = np.floor(turns * law.u("progress", key)).astype(np.int64)
    scale = law.growth_scale(law.depth(turns))
    context = _context_at(law, key, turn, turns, scale)
    output = tokens(law.output.length_biased(law.u("steady output", key)))
    done = np.floor(output * law.u("steady progress", key)).astype(np.int64)
    think_s = np.where(turn > 0, law.think(law.u("think", key, turn)), 0.0)
    now = Chunk(
        np.zeros(count), context + done, output - done, key - IN_SERVICE, turn.astype(np.int32), think_s
    )
    state = _Open(key, key - IN_SERVICE, turn, turns, context, scale, np.zeros(count), think_s)
    state = _next_turn(law, state, output, service_s(output - done))
    return state.rows(state.turn < state.turns), now


def _thinking(law: _Law, count: int, first_number: int) -> _Open:
    """Sessions between two turns at time 0."""
    key = THINKING + np.arange(count)
    turns = law.turns(law.u("turns", key), law.turn_counts - 1)
    turn = 1 + np.floor((turns - 1) * law.u("progress", key)).astype(np.int64)
    scale = law.growth_scale(law.depth(turns))
    think_s = law.think.length_biased(law.u("steady think", key))
    next_s = think_s * law.u("steady think left", key)
    context = _context_at(law, key, turn, turns, scale)
    return _Open(key, key - THINKING + first_number, turn, turns, context, scale, next_s, think_s)


def _context_at(law: _Law, key: Ints, turn: Ints, turns: Ints, scale: Floats) -> Ints:
    """Context of a session at a given turn: its base, and all that came since.

    The base is the first context, or that after the last compaction; how long ago that was is geometric.
    """
    since = np.floor(np.log(law.u("last compaction", key)) / np.log1p(-law.table["compaction"])).astype(
        np.int64
    )
    compacted = since < turn
    past = np.minimum(since, turn)
    context = np.where(
        compacted, tokens(law.compacted(law.u("compacted", key))), law.first_context(key, law.depth(turns))
    )
    ends = np.cumsum(past)
    begin = 0
    while begin < len(key):
        before = ends[begin] - past[begin]
        end = max(begin + 1, int(np.searchsorted(ends, before + HISTORY_DRAWS, side="right")))
        rows = np.repeat(np.arange(begin, end), past[begin:end])
        step = np.arange(len(rows)) - np.repeat(ends[begin:end] - past[begin:end] - before, past[begin:end])
        added = tokens(law.output(law.u("past output", key[rows], step)))
        added += law.grown(law.u("past growth", key[rows], step), scale[rows])
        total = np.r_[0, np.cumsum(added)]
        context[begin:end] += (
            total[ends[begin:end] - before] - total[ends[begin:end] - past[begin:end] - before]
        )
        begin = end
    return law.capped(context)


def _next_turn(law: _Law, state: _Open, output: Ints, served_s: Floats) -> _Open:
    """The sessions after their request has been answered; the last turn leaves ``turn == turns``."""
    turn = state.turn + 1
    think_s = law.think(law.u("think", state.key, turn))
    context = law.capped(
        state.context + output + law.grown(law.u("growth", state.key, turn), state.growth_scale)
    )
    u = law.u("compaction", state.key, turn)
    compacts = u < law.table["compaction"]
    context[compacts] = tokens(law.compacted(u[compacts] / law.table["compaction"]))
    next_s = state.next_s + served_s + think_s
    return _Open(state.key, state.number, turn, state.turns, context, state.growth_scale, next_s, think_s)


def _advance(law: _Law, opened: _Open, end_s: float) -> tuple[Chunk, _Open]:
    """All requests before ``end_s``, and the sessions still open then."""
    later = opened.next_s >= end_s
    waiting, due = [opened.rows(later)], opened.rows(~later)
    parts = []
    while len(due.key):
        output = tokens(law.output(law.u("output", due.key, due.turn)))
        turn = due.turn.astype(np.int32)
        parts.append((due.next_s, due.context, output, due.number, turn, due.think_s))
        due = _next_turn(law, due, output, service_s(output))
        due = due.rows(due.turn < due.turns)
        later = due.next_s >= end_s
        waiting.append(due.rows(later))
        due = due.rows(~later)
    for other in waiting[1:]:
        if len(other.key):
            waiting[0] = waiting[0].join(other)
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Chunk(np.zeros(0), empty, empty), waiting[0]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Chunk(*(column[order] for column in columns)), waiting[0]
