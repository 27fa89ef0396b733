"""Synthetic workloads: `synth` makes a trace of any length from a preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from equipoise.errors import TraceError
from equipoise.traces.chunk import Chunk
from equipoise.traces.presets import load_preset
from equipoise.traces.reorder import check_positive
from equipoise.traces.timing import SERVER_TPOT_S
from equipoise.traces.trace import Trace

__all__ = ["DEFAULT_PRESET", "DEFAULT_REQUESTS", "synth"]

DEFAULT_PRESET = "agentic-coding"
DEFAULT_REQUESTS = 40_000
MAX_REQUESTS = 1_000_000_000


def synth(
    preset: str = DEFAULT_PRESET,
    requests: int = DEFAULT_REQUESTS,
    seed: int = 0,
    rate_per_s: float | None = None,
    steady_state: int = 0,
) -> Trace:
    """Make a trace from a preset.

    Every field draws from a sub-stream of its own. Asking for more requests keeps the first ones. Another rate keeps
    the lengths: of the i-th request where there are no sessions, of every turn of every session where there are (which
    of them fall into the trace, and in which order, does depend on the rate).

    Parameters
    ----------
    preset : str
        One of `equipoise.traces.presets.PRESETS`.
    requests : int
    seed : int
    rate_per_s : float, optional
        Requests a second; the preset's own rate if not given, or, with ``steady_state``, the rate that keeps that many
        in flight at `SERVER_TPOT_S` a token.
    steady_state : int
        The first so many requests are those in flight in a pool that has always been running: they arrive at 0, are
        drawn weighted by their output, and stand anywhere in it (context grown by what is generated, output what is
        left).

    Returns
    -------
    Trace

    Raises
    ------
    TraceError
        Unknown preset; a number that is out of range.

    Examples
    --------
    >>> len(synth("chat-short", requests=1000, seed=7))
    1000
    """
    table = load_preset(preset)
    for name, value, low in (("requests", requests, 1), ("steady_state", steady_state, 0)):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | np.integer)
            or not low <= value <= MAX_REQUESTS
        ):
            raise TraceError(
                f"{name} = {value!r}", fix=f"expected a whole number from {low} to {MAX_REQUESTS}"
            )
    if rate_per_s is None:
        rate_per_s = (
            steady_state / (_mean_output(table) * SERVER_TPOT_S) if steady_state else table["rate_per_s"]
        )
    check_positive("rate_per_s", rate_per_s)
    return _collect(preset, _chunks(preset, table, seed, rate_per_s, int(steady_state)), int(requests))


def _chunks(
    name: str, table: Mapping[str, Any], seed: int, rate_per_s: float, steady_state: int
) -> Iterator[Chunk]:
    if "mix" in table:
        return _mixed(table, seed, rate_per_s, steady_state)
    if "sessions" in table:
        from equipoise.traces.synth_sessions import session_chunks

        return session_chunks(name, table, seed, rate_per_s, steady_state)
    from equipoise.traces.synth_requests import request_chunks

    return request_chunks(name, table, seed, rate_per_s, steady_state)


def _mean_output(table: Mapping[str, Any]) -> float:
    from equipoise.traces.distributions import distribution

    if "mix" in table:
        return sum(float(part["share"]) * _mean_output(load_preset(part["preset"])) for part in table["mix"])
    return distribution(table["output_tokens"]).mean


def _mixed(table: Mapping[str, Any], seed: int, rate_per_s: float, steady_state: int) -> Iterator[Chunk]:
    """Several presets superposed, each at its share of the rate; at most one of them has sessions."""
    streams, left = [], steady_state
    mean = _mean_output(table)
    for i, part in enumerate(table["mix"]):
        preset = load_preset(part["preset"])
        # requests in flight are shared by arrivals x residence
        in_flight = round(steady_state * part["share"] * _mean_output(preset) / mean)
        in_flight = left if i == len(table["mix"]) - 1 else min(left, in_flight)
        left -= in_flight
        streams.append(_chunks(part["preset"], preset, seed, rate_per_s * part["share"], in_flight))
    return _merged(streams)


def _merged(streams: list[Iterator[Chunk]]) -> Iterator[Chunk]:
    """Chunks of several streams merged by arrival: everything up to where all streams are known."""
    held = [_full(next(stream)) for stream in streams]
    while True:
        known_s = min(columns[0][-1] for columns in held)
        ready = []
        for i, columns in enumerate(held):
            cut = int(np.searchsorted(columns[0], known_s, side="right"))
            ready.append(tuple(column[:cut] for column in columns))
            held[i] = tuple(column[cut:] for column in columns)
        merged = [np.concatenate(column) for column in zip(*ready, strict=True)]
        order = np.argsort(merged[0], kind="stable")
        yield Chunk(*(column[order] for column in merged))
        for i, stream in enumerate(streams):
            if not len(held[i][0]):
                held[i] = _full(next(stream))


def _full(chunk: Chunk) -> tuple[Any, ...]:
    """All six columns, the session columns filled in."""
    n = len(chunk.arrival_s)
    session = np.full(n, -1, dtype=np.int64) if chunk.session is None else chunk.session
    turn = np.zeros(n, dtype=np.int32) if chunk.turn is None else chunk.turn
    think_s = np.zeros(n) if chunk.think_s is None else chunk.think_s
    return chunk.arrival_s, chunk.context_tokens, chunk.output_tokens, session, turn, think_s


def _collect(name: str, chunks: Iterator[Chunk], requests: int) -> Trace:
    first = next(chunks)
    names = [n for n in Chunk.__slots__ if getattr(first, n) is not None]
    columns: dict[str, Any] = {n: np.empty(requests, dtype=getattr(first, n).dtype) for n in names}
    done, chunk = 0, first
    while True:
        taken = min(len(chunk.arrival_s), requests - done)
        for column, values in columns.items():
            values[done : done + taken] = getattr(chunk, column)[:taken]
        done += taken
        if done == requests:
            break
        chunk = next(chunks)
    columns["arrival_s"] -= columns["arrival_s"][0]
    return Trace.from_columns(name, **columns, source=f"synthetic preset {name}")
