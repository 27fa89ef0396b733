"""The nouns that cross rooms as arrays: plain named tuples, so compiled code takes them as they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Ints", "Memory", "Prices", "Ranks", "Requests"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
    saturated_tokens: Ints
    """int64[ranks, saturations], sum over requests of min(context, saturation length), in tokens."""
    instance: Ints
    """int64[ranks], the instance (barrier) a rank belongs to."""
    report_age_steps: Ints
    """int64[ranks], how many steps old this picture of the rank is; 0 = exact."""


class Requests(NamedTuple):
    """The requests that wait to be placed, oldest first. The true output length is never among them."""

    context_tokens: Ints
    """int64[requests], tokens in the KV cache when decoding starts."""
    budget_tokens: Ints
    """int64[requests], declared output limit (``max_tokens``), -1 where none was declared."""
    session: Ints
    """int64[requests], conversation id, -1 where there is none."""
    waited_rounds: Ints
    """int64[requests], placement rounds this request has already sat through."""


class Prices(NamedTuple):
    """A step cost as arrays: T terms, S saturation lengths (`equipoise.cost.StepCost.prices` makes it)."""

    constant: float
    """Price every step pays."""
    barrier_step: int
    """1: one barrier a step (max of the sum); 0: one a term (sum of the maxima)."""
    batch: Floats
    """float64[T, N + 1], price of a batch of 0 ... N requests."""
    batch_tail: Floats
    """float64[T], price of each further request beyond N."""
    envelope: Floats
    """float64[T, N + 1], lower convex envelope of ``batch``: what an even spread costs."""
    envelope_tail: Floats
    """float64[T], its slope beyond N."""
    context: Floats
    """float64[T], price of one context token."""
    saturated: Floats
    """float64[T, S], price of one saturated token."""
    saturation_tokens: Ints
    """int64[S], the saturation lengths, ascending."""


class Memory(NamedTuple):
    """A policy's own mutable state; it lives as long as the router and is handed to every call."""

    ints: Ints
    """int64[...], counters, windows, random state; sized and seeded by the policy."""
    floats: Floats
    """float64[...], learnt quantities."""
