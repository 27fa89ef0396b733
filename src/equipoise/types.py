"""The nouns that cross rooms as arrays: plain named tuples, so compiled code takes them as they are.

Their annotations are what `equipoise._jit.numba_type` makes the compiled signatures of. Make and cut them with
`equipoise.policies.views`, by name: a field may be added.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BOOKED",
    "Floats",
    "Floats2D",
    "Ints",
    "Ints2D",
    "Ints3D",
    "Memory",
    "Prices",
    "Ranks",
    "Requests",
    "SmallInts",
    "SmallInts2D",
    "SmallInts3D",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SmallInts = NDArray[np.int32]
Ints2D = Annotated[NDArray[np.int64], 2]
Ints3D = Annotated[NDArray[np.int64], 3]
SmallInts2D = Annotated[NDArray[np.int32], 2]
SmallInts3D = Annotated[NDArray[np.int32], 3]
Floats2D = Annotated[NDArray[np.float64], 2]


class Ranks(NamedTuple):
    """What a router knows of the ranks it may choose from; a policy books its own choices into it.

    All arrays have one entry a rank (``saturated_tokens`` one row a rank). A policy sees a view of its own:
    whatever it writes here cannot harm the true state.
    """

    batch: Ints
    """int64[ranks], running requests, those placed and not yet started included."""
    context_tokens: Ints
    """int64[ranks], sum of the context lengths of these requests, in tokens."""
    free_tokens: Ints
    """int64[ranks], tokens that still fit (growth reserve taken off); -1 where no request may go."""
    free_slots: Ints
    """int64[ranks], requests that still fit under ``max_batch``."""
    saturated_tokens: Ints2D
    """int64[ranks, saturations], sum over requests of min(context, saturation length), in tokens."""
    unseen_requests: Ints
    """int64[ranks], of ``batch``, those the router placed and no report shows yet; 0 where it counts its own."""
    instance: Ints
    """int64[ranks], the instance (barrier) a rank belongs to, numbered over the whole pool."""
    rank: Ints
    """int64[ranks], the rank's number over the whole pool; not its index where a group or some ranks are shown."""
    starts_in_s: Floats
    """float64[ranks], seconds until what is placed now starts: the instance's next step boundary; 0 = at once."""
    report_age_steps: Ints
    """int64[ranks], steps the rank has done since the report behind this picture; 0 where there are no reports."""


BOOKED = ("batch", "context_tokens", "free_tokens", "free_slots", "saturated_tokens")
"""Fields of `Ranks` that a placed request changes (`equipoise.policies.api.book`); the others a policy only reads."""


class Requests(NamedTuple):
    """The requests that wait to be placed, oldest first. The true output length is never among them."""

    context_tokens: Ints
    """int64[requests], tokens in the KV cache when decoding starts."""
    reserve_tokens: Ints
    """int64[requests], tokens of KV it takes when placed (the context, rounded up to blocks where there are blocks)."""
    budget_tokens: Ints
    """int64[requests], declared output limit (``max_tokens``), -1 where none was declared."""
    session: Ints
    """int64[requests], conversation id, -1 where there is none."""
    request: Ints
    """int64[requests], the request's number: the same in every round it is offered in."""
    waited_steps: Ints
    """int64[requests], steps since it was first offered: completed steps of all instances, over the instances."""
    waited_s: Floats
    """float64[requests], seconds since it arrived (``saturated`` replay: since it was first offered)."""


class Prices(NamedTuple):
    """A step cost as arrays: T terms, S saturation lengths (`equipoise.cost.StepCost.prices` makes it)."""

    constant: float
    """Price every step pays."""
    barrier_step: int
    """1: one barrier a step (max of the sum); 0: one a term (sum of the maxima)."""
    batch: Floats2D
    """float64[T, N + 1], price of a batch of 0 ... N requests."""
    batch_tail: Floats
    """float64[T], price of each further request beyond N."""
    envelope: Floats2D
    """float64[T, N + 1], lower convex envelope of ``batch``: what an even spread costs."""
    envelope_tail: Floats
    """float64[T], its slope beyond N."""
    context: Floats
    """float64[T], price of one context token."""
    saturated: Floats2D
    """float64[T, S], price of one saturated token."""
    saturation_tokens: Ints
    """int64[S], the saturation lengths, ascending."""


class Memory(NamedTuple):
    """A policy's own mutable state; it lives as long as the router and is handed to every call."""

    ints: Ints
    """int64[...], counters, windows, random state; sized and seeded by the policy."""
    floats: Floats
    """float64[...], learnt quantities."""
