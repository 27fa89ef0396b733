"""Synthetic requests without sessions: arrivals from clients, lengths by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from equipoise.traces.chunk import CHUNK_REQUESTS, Chunk
from equipoise.traces.distributions import distribution, tokens
from equipoise.traces.streams import Uniforms, generator
from equipoise.types import Floats

__all__ = ["request_chunks"]


def request_chunks(
    name: str, preset: Mapping[str, Any], seed: int, rate_per_s: float, steady_state: int
) -> Iterator[Chunk]:
    """Endless requests of a preset without sessions.

    Parameters
    ----------
    name : str
        Prefix of the sub-streams' names.
    preset : mapping
    seed : int
    rate_per_s : float
    steady_state : int
        Requests in flight at time 0, which come first.
    """
    context, output = distribution(preset["context_tokens"]), distribution(preset["output_tokens"])
    if steady_state:
        i = np.arange(steady_state)
        length = tokens(output.length_biased(Uniforms(seed, f"{name}/steady output")(i)))
        done = np.floor(length * Uniforms(seed, f"{name}/steady progress")(i)).astype(np.int64)
        begun = tokens(context(Uniforms(seed, f"{name}/steady context")(i)))
        yield Chunk(np.zeros(steady_state), begun + done, length - done)
    draw_context, draw_output = Uniforms(seed, f"{name}/context"), Uniforms(seed, f"{name}/output")
    position = 0
    for arrival_s in _arrivals(name, preset["arrivals"], seed, rate_per_s):
        i = np.arange(position, position + len(arrival_s))
        position += len(arrival_s)
        yield Chunk(arrival_s, tokens(context(draw_context(i))), tokens(output(draw_output(i))))


def _arrivals(name: str, table: Mapping[str, Any], seed: int, rate_per_s: float) -> Iterator[Floats]:
    """Arrival times, chunk by chunk: Gamma renewal processes of the clients, on a clock that swings."""
    clients: list[_Client] = []
    for group in table["clients"]:
        for _ in range(group["count"]):
            rng = generator(seed, f"{name}/arrivals", len(clients))
            clients.append(_Client(rng, rate_per_s * group["share"] / group["count"], group["cv"]))
    clock = _Clock(generator(seed, f"{name}/modulation"), table.get("modulation"))
    step_s = CHUNK_REQUESTS / rate_per_s
    end_s = step_s
    while True:
        times = np.concatenate([client.until(end_s) for client in clients])
        times.sort(kind="stable")
        if len(times):
            yield clock.real(times)
        end_s += step_s


class _Client:
    """A renewal process with Gamma gaps of a given coefficient of variation: shape 1 / cv^2."""

    def __init__(self, rng: np.random.Generator, rate_per_s: float, cv: float) -> None:
        self._rng = rng
        self._shape = 1.0 / cv**2
        self._scale_s = 1.0 / (rate_per_s * self._shape)
        self._count = 256
        self._pending = np.zeros(0)
        self._last_s = 0.0

    def until(self, end_s: float) -> Floats:
        """Arrivals before ``end_s`` that have not been given out."""
        parts = [self._pending]
        while self._last_s < end_s:
            gaps_s = self._rng.standard_gamma(self._shape, self._count) * self._scale_s
            times = self._last_s + np.cumsum(gaps_s)
            self._last_s = float(times[-1])
            parts.append(times)
        times = np.concatenate(parts)
        cut = int(np.searchsorted(times, end_s))
        self._pending = times[cut:]
        return times[:cut]


class _Clock:
    """Maps the time of a steady process to real time, so that the rate swings around its mean.

    The rate is constant in steps; its logarithm is an AR(1) process. Real time t and steady time s: s = integral of the
    relative rate, so t is found by interpolation.
    """

    def __init__(self, rng: np.random.Generator, table: Mapping[str, Any] | None) -> None:
        self._rng = rng
        self._table = table
        self._state: float | None = None
        self._steady_s = np.zeros(1)
        self._first = 0

    def real(self, steady_s: Floats) -> Floats:
        """Real times of rising steady times; calls must rise too."""
        if self._table is None:
            return steady_s
        step_s = self._table["step_s"]
        while self._steady_s[-1] < steady_s[-1]:
            self._steady_s = np.r_[
                self._steady_s, self._steady_s[-1] + np.cumsum(self._factors(256)) * step_s
            ]
        edges_s = (self._first + np.arange(len(self._steady_s))) * step_s
        times: Floats = np.interp(steady_s, self._steady_s, edges_s)
        done = max(0, int(np.searchsorted(self._steady_s, steady_s[-1])) - 1)
        self._steady_s, self._first = self._steady_s[done:], self._first + done
        return times

    def _factors(self, count: int) -> Floats:
        assert self._table is not None
        sigma = float(np.sqrt(np.log1p(self._table["cv"] ** 2)))
        rho = self._table["correlation"]
        noise = self._rng.standard_normal(count)
        values = np.empty(count)
        state = self._state
        for i in range(count):
            state = float(noise[i]) if state is None else rho * state + np.sqrt(1 - rho**2) * float(noise[i])
            values[i] = state
        self._state = state
        return np.exp(sigma * values - sigma**2 / 2)
