"""Hypothesis strategies for what replay takes: traces, pools, costs, policies.

Everything is small on purpose: the slow twin counts request by request, and small cases shrink to readable ones.
Sizes and kinds are Hypothesis's own draws; the many numbers inside come from a generator that it seeds, which makes a
case ten times cheaper to draw. Loads are mixed so that ties, full ranks, blocked requests and saturation crossings
all happen often.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.cost.step_cost import Barrier, Saturation, StepCost, Term
from equipoise.policies.api import Parameter
from equipoise.policies.registry import BUILT_IN, Policy, get, spec
from equipoise.replay.pool import Pool
from equipoise.testing.needs import st
from equipoise.traces.trace import Trace
from equipoise.types import Floats, Ints

__all__ = ["MAX_CONTEXT_TOKENS", "costs", "generators", "lengths", "policies", "pools", "traces"]

MAX_CONTEXT_TOKENS = 120
"""Longest context of a small trace; some requests cross a saturation length, some start beyond it."""


def generators() -> st.SearchStrategy[np.random.Generator]:
    """Random generators with seeds of Hypothesis's choice; a failing case names its seed."""
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


def lengths(rng: np.random.Generator, n: int, high: int) -> Ints:
    """Lengths of 1 to ``high`` tokens, half of them tiny, so that many tie."""
    return np.where(rng.random(n) < 0.5, rng.integers(1, min(6, high) + 1, n), rng.integers(1, high + 1, n))


def traces(
    *,
    min_requests: int = 1,
    max_requests: int = 30,
    max_context_tokens: int = MAX_CONTEXT_TOKENS,
    max_output_tokens: int = 30,
) -> st.SearchStrategy[Trace]:
    """Traces with arrivals that tie, gap and bunch, short and long requests, sessions on some."""

    def build(n: int, rng: np.random.Generator, gap_s: float, with_sessions: bool) -> Trace:
        gaps: Floats = (
            rng.choice(np.array([0.0, 1.0, float(rng.random()), 5.0 * float(rng.random())]), n) * gap_s
        )
        return Trace.from_columns(
            "small",
            np.cumsum(gaps),
            lengths(rng, n, max_context_tokens),
            lengths(rng, n, max_output_tokens),
            session=rng.integers(-1, 4, n) if with_sessions else None,
        )

    return st.builds(
        build,
        st.integers(min_requests, max_requests),
        generators(),
        gap_s=st.sampled_from([0.0, 0.25, 4.0, 60.0]),
        with_sessions=st.booleans(),
    )


@st.composite
def pools(draw: st.DrawFn, *, max_instances: int = 3, max_ranks: int = 4) -> Pool:
    """Pools of up to twelve ranks; capacity and batch limits are tight, loose or absent; groups where they can be."""
    instances = draw(st.integers(1, max_instances))
    capacity = draw(st.one_of(st.none(), st.integers(MAX_CONTEXT_TOKENS // 2, 4 * MAX_CONTEXT_TOKENS)))
    return Pool(
        instances=instances,
        ranks=draw(st.integers(1, max_ranks)),
        kv_capacity_tokens=capacity,
        max_batch=draw(st.one_of(st.none(), st.integers(1, 6))),
        growth_reserve_tokens=draw(st.sampled_from([0, 20])) if capacity is not None else 0,
        groups=draw(st.integers(1, instances)),
    )


def costs(*, max_terms: int = 3) -> st.SearchStrategy[StepCost]:
    """Step costs of every kind under either barrier: linear, roofline and staircase prices, up to two saturations.

    Every step costs something, and takes from far below the gaps of `traces` to far above.
    """

    def term(rng: np.random.Generator, kind: str, name: str) -> Term:
        table: tuple[float, ...] = ()
        if kind == "staircase":
            rises = rng.integers(0, 96, int(rng.integers(1, 13))) / 32 * rng.integers(0, 2)
            table = tuple(np.cumsum(rises).tolist())
        bounds = rng.integers(1, MAX_CONTEXT_TOKENS + 20, int(rng.integers(0, 3)))
        return Term(
            name,
            weight=float(rng.integers(1, 9)) / 8,
            per_request=float(rng.integers(0, 64)) / 32,
            per_100k_context=float(rng.integers(0, 64)) * 625 * float(rng.integers(0, 2)),
            batch_floor=int(rng.integers(1, 7)) if kind == "roofline" else 0,
            batch_table=table,
            saturations=tuple(Saturation(int(b), float(rng.integers(0, 64)) * 625) for b in bounds),
        )

    def build(kinds: list[str], rng: np.random.Generator, barrier: Barrier, us_per_unit: float) -> StepCost:
        return StepCost(
            "small",
            tuple(term(rng, kind, f"{kind}{i}") for i, kind in enumerate(kinds)),
            constant=float(rng.integers(1, 33)) / 16,
            barrier=barrier,
            us_per_unit=us_per_unit,
        )

    return st.builds(
        build,
        st.lists(st.sampled_from(["linear", "roofline", "staircase"]), min_size=1, max_size=max_terms),
        generators(),
        barrier=st.sampled_from(["layer", "step"]),
        us_per_unit=st.sampled_from([74.0, 1e5, 1e6, 2.5e6]),
    )


def _values(parameter: Parameter) -> st.SearchStrategy[Any]:
    """Valid values of one parameter, small ones for windows."""
    if parameter.choices:
        return st.sampled_from(parameter.choices)
    if isinstance(parameter.default, bool):
        return st.booleans()
    low = max(parameter.low, -100.0)
    high = min(parameter.high, max(low, 0.0) + (20.0 if parameter.integer else 100.0))
    if parameter.integer:
        return st.integers(int(np.ceil(low)), int(high))
    near = st.floats(low, min(high, max(low, 0.0) + 3.0))  # factors around one do more than those far off
    numbers = st.one_of(st.just(float(parameter.default)), near, st.floats(low, high))
    return st.one_of(numbers, st.sampled_from(parameter.words)) if parameter.words else numbers


@st.composite
def policies(draw: st.DrawFn, names: tuple[str, ...] = tuple(BUILT_IN)) -> Policy:
    """Built-in policies with random valid parameters."""
    name = draw(st.sampled_from(sorted(names)))
    return get(name, **{p.name: draw(_values(p)) for p in spec(name).parameters})
