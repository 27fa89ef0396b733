"""The requests of one run: the same for every policy of a setting, other ones for every seed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.replay import Pool
from equipoise.traces.interleave import assign_session_starts, cycle
from equipoise.traces.resolve import load, preset_of
from equipoise.traces.statistics import describe
from equipoise.traces.synthetic import synth
from equipoise.traces.timing import service_s
from equipoise.traces.trace import Trace
from equipoise.types import Ints

__all__ = ["TURNOVERS", "decode_mean_of_least", "load_source", "rate_for", "workload"]

TURNOVERS = 20
"""Times a default run turns its pool over: the first is warm-up, the rest is measured."""

KEPT_REQUESTS = 1_000_000
"""Longest drawn trace that is kept for the next candidate: 16 of them stay under half a gigabyte."""


def load_source(spec: str) -> Trace | None:
    """Read a trace file; None for a preset, which every seed draws anew."""
    return None if preset_of(spec) else load(spec)


def workload(
    spec: str,
    source: Trace | None,
    *,
    seed: int,
    concurrency: int,
    requests: int | None,
    timed: bool,
    as_recorded: bool = False,
) -> Trace:
    """The trace of one seed.

    A preset is drawn with that seed, starting in the middle of its steady state. Every seed interleaves
    the sessions of a file (or its blocks of neighbouring requests) anew, so that all seeds are alike; a study of one
    seed takes the file ``as_recorded`` if that seed is 0. A file too short for the run is cycled, each pass in another
    order. Sessions whose starts were not recorded are interleaved at the rate a pool
    of this concurrency lives on: a handful of open sessions would never fill it.
    """
    if source is None:
        wanted = requests or TURNOVERS * concurrency
        in_flight = 0 if timed else min(concurrency, wanted)
        draw = _drawn if wanted <= KEPT_REQUESTS else _drawn.__wrapped__
        return draw(spec.removeprefix("preset:"), wanted, seed, in_flight)
    wanted = requests or (len(source) if timed else max(len(source), TURNOVERS * concurrency))
    if not source.arrivals_known:
        rate_per_s = concurrency / float(service_s(source.output_tokens).mean())
        source = assign_session_starts(source, seed, rate_per_s=rate_per_s)
    return cycle(source, wanted, seed if as_recorded else seed + 1)


@lru_cache(maxsize=16)
def _drawn(preset: str, requests: int, seed: int, in_flight: int) -> Trace:
    """A preset's trace; a search asks for the same few again and again."""
    return synth(preset, requests=requests, seed=seed, steady_state=in_flight)


def rate_for(trace: Trace, cost: StepCost, pool: Pool, concurrency: int) -> float:
    """Factor on the arrival rate at which about so many requests run at a time.

    Little's law: rate = N / (output tokens x step time), the step priced at its ideal for N requests of the trace's
    output-weighted context. The real pool is slower than its ideal, so somewhat more than N will run. A load belongs to
    a rate only where a step has a fixed cost: under a price purely per request (V1) a pool twice as full is half as
    fast, every rate is either under its capacity or over it, and the number of running requests wanders.
    """
    each, more = divmod(concurrency, pool.instances)
    requests = max(1, each + (2 * more >= pool.instances))  # of one instance
    batch = _spread(requests, pool.ranks)
    context = _spread(round(requests * describe(trace).decode.mean), pool.ranks)
    saturated = [
        _spread(round(requests * decode_mean_of_least(trace, length)), pool.ranks)
        for length in cost.saturation_tokens
    ]
    K = np.array(saturated, dtype=np.int64).reshape(-1, pool.ranks).T
    step_s = float(cost.ideal(batch, context, K)) * cost.us_per_unit * 1e-6
    wanted_per_s = concurrency / (float(trace.output_tokens.mean()) * step_s)
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    if span_s <= 0:
        raise InputError(
            "all requests arrive at once, so no rate can be set",
            where=f"trace {trace.name!r}",
            fix="use saturated mode",
        )
    return wanted_per_s * span_s / len(trace)


def _spread(total: int, ranks: int) -> Ints:
    """A total over ranks, as evenly as whole numbers go."""
    return np.full(ranks, total // ranks) + (np.arange(ranks) < total % ranks)


def decode_mean_of_least(trace: Trace, length: int) -> float:
    """Mean over decode steps of min(context, length), in tokens: what a step of one request saturates to."""
    # Of `output` steps at contexts c, c + 1 ... the first `below` are under the length.
    c, output = trace.context_tokens, trace.output_tokens
    below = np.clip(length - c, 0, output)
    total = below * c + below * (below - 1) // 2 + (output - below) * length
    return float(total.sum() / output.sum())
