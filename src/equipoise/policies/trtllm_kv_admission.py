"""``trtllm_kv_admission``: whom to admit of the next 32, and where, so that the largest batch and KV stay low.

Option ``enable_kv_balanced_admission`` of TensorRT-LLM's attention data parallelism (``AttentionDpConfig``,
reference of 1.4.0rc4): of the first 32 queued generation-only requests the router chooses which to admit and which
rank takes each, keeping the largest request count and the largest KV token count of a rank low, instead of
admitting in order. That sentence is all that is public of the rule. Read here as a greedy one, a pair of request
and rank at a time:

1. Window: the oldest ``look_ahead`` waiting requests.
2. Rank: the fewest tokens among those whose batch is below the largest of all, so that the largest batch rises only
   if it must; if all batches are equal, or only the fullest have room, among all.
3. Request: the longest with which that rank stays within the largest token count of all; if there is none, the
   shortest.
4. Again until the window is placed or nothing of it has room; a window that is placed makes way for the next one.

*Left out*: requests pinned to a rank, for which the option turns itself off. Only ranks with room for a request of
the window are looked at, and only requests for which the rank has room. What is not admitted stays first in the
queue.
"""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, STAY, Parameter, PolicySpec, book, fits, placement
from equipoise.types import Ints, Ranks, Requests

LOOK_AHEAD = 0


@jitable
def smallest_room(requests: Requests, out: Ints, first: int, last: int) -> int:
    """The least room that an unplaced request of the window needs."""
    least = NO_LIMIT
    for i in range(first, last):
        if out[i] == STAY:
            least = min(least, requests.reserve_tokens[i])
    return least


@jitable
def choose_rank(ranks: Ranks, reserve_tokens: int, most_requests: int) -> int:
    """Fewest tokens among the ranks with room whose batch is below so many, otherwise among all with room."""
    best, tokens, best_below = STAY, NO_LIMIT, False
    for r in range(len(ranks.batch)):
        c, below = ranks.context_tokens[r], ranks.batch[r] < most_requests
        better = c < tokens if below == best_below else below
        if better and fits(ranks, r, reserve_tokens):
            best, tokens, best_below = r, c, below
    return best


@jitable
def choose_request(
    ranks: Ranks, rank: int, requests: Requests, out: Ints, first: int, last: int, margin: int
) -> int:
    """The longest unplaced request of at most `margin` tokens that fits, otherwise the shortest that fits."""
    longest, shortest = STAY, STAY
    for i in range(first, last):
        if out[i] != STAY or not fits(ranks, rank, requests.reserve_tokens[i]):
            continue
        tokens = requests.context_tokens[i]
        if tokens <= margin and (longest == STAY or tokens > requests.context_tokens[longest]):
            longest = i
        if shortest == STAY or tokens < requests.context_tokens[shortest]:
            shortest = i
    return longest if longest != STAY else shortest


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    out[:] = STAY
    most_requests, most_tokens = ranks.batch.max(), ranks.context_tokens.max()
    look_ahead = int(params[LOOK_AHEAD])
    for first in range(0, len(out), look_ahead):
        last = min(first + look_ahead, len(out))
        for _ in range(first, last):
            rank = choose_rank(ranks, smallest_room(requests, out, first, last), most_requests)
            if rank == STAY:
                return
            margin = most_tokens - ranks.context_tokens[rank]
            i = choose_request(ranks, rank, requests, out, first, last, margin)
            out[i] = rank
            book(ranks, rank, requests, i, prices)
            most_requests = max(most_requests, ranks.batch[rank])
            most_tokens = max(most_tokens, ranks.context_tokens[rank])


SPEC = PolicySpec(
    name="trtllm_kv_admission",
    place=place,
    summary="whom of the next 32 and where: the largest batch and the largest token count of a rank stay low",
    source="TensorRT-LLM 1.4 rc, AttentionDpConfig.enable_kv_balanced_admission (from its description)",
    parameters=(
        Parameter("look_ahead", 32, "how many queued requests are looked at", low=1, high=1024, integer=True),
    ),
)
