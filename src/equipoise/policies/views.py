"""Making, cutting and copying what a policy is shown; a further field of `Ranks` or `Requests` is added here."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise._jit import jitable
from equipoise.types import Ints, Ranks, Requests

__all__ = [
    "copy_ranks",
    "empty_ranks",
    "slice_ranks",
    "take_requests",
    "waiting_requests",
]


@jitable
def empty_ranks(
    ranks: int, ranks_per_instance: int, saturations: int, free_tokens: int, free_slots: int
) -> Ranks:
    """Idle ranks of a whole pool, all at their step boundary and exactly known.

    Parameters
    ----------
    ranks, ranks_per_instance, saturations : int
    free_tokens, free_slots : int
        What fits on each.
    """
    return Ranks(
        np.zeros(ranks, np.int64),
        np.zeros(ranks, np.int64),
        np.full(ranks, free_tokens),
        np.full(ranks, free_slots),
        np.zeros((ranks, saturations), np.int64),
        np.zeros(ranks, np.int64),
        np.arange(ranks) // ranks_per_instance,
        np.arange(ranks),
        np.zeros(ranks, np.float64),
        np.zeros(ranks, np.int64),
    )


@jitable
def slice_ranks(ranks: Ranks, first: int, last: int) -> Ranks:
    """Ranks from `first` to before `last`, sharing memory with the whole."""
    return Ranks(
        ranks.batch[first:last],
        ranks.context_tokens[first:last],
        ranks.free_tokens[first:last],
        ranks.free_slots[first:last],
        ranks.saturated_tokens[first:last],
        ranks.unseen_requests[first:last],
        ranks.instance[first:last],
        ranks.rank[first:last],
        ranks.starts_in_s[first:last],
        ranks.report_age_steps[first:last],
    )


def copy_ranks(ranks: Ranks, order: Ints | list[int] | None = None) -> Ranks:
    """A view that can be spoilt, its ranks in the order given."""
    copied: list[Any] = [column.copy() if order is None else column[order] for column in ranks]
    return Ranks(*copied)


@jitable
def waiting_requests(requests: int) -> Requests:
    """Room for so many requests: nothing declared, no session, not waited; numbered from 0."""
    return Requests(
        np.zeros(requests, np.int64),
        np.zeros(requests, np.int64),
        np.full(requests, -1),
        np.full(requests, -1),
        np.arange(requests),
        np.zeros(requests, np.int64),
        np.zeros(requests, np.float64),
    )


@jitable
def take_requests(requests: Requests, members: Ints) -> Requests:
    """Some of the requests, copied."""
    return Requests(
        requests.context_tokens[members],
        requests.reserve_tokens[members],
        requests.budget_tokens[members],
        requests.session[members],
        requests.request[members],
        requests.waited_steps[members],
        requests.waited_s[members],
    )
