"""The rows of a rank, what runs on it in order of admission: growth, memory, admission, the end of a step.

Rows stand side by side in arrays of their own for each rank, so that adding them up is vector code and no request is
looked up while it runs.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.cost.prefill_evaluate import chunk_work
from equipoise.fleet.kernel.lists import take_first
from equipoise.fleet.kernel.pictures import held_tokens
from equipoise.fleet.kernel.state import AT, GROW, LACK, QUEUED, RING_MASK, RUNNING, UNTIL, USED, WHO, WINDOW
from equipoise.fleet.kernel.world import draws_in, prefill_in, prices_in, state_in

__all__ = [
    "add_up",
    "compute_prompts",
    "count_queued",
    "drop_row",
    "grow_all",
    "growth",
    "needed",
    "next_turn",
    "set_place",
    "take_row",
    "take_tokens",
    "unqueue",
]


@jitable
def growth(world, rank, row):  # type: ignore[no-untyped-def]
    """Tokens that a decoding row yields in the step that is being started, or that is under way."""
    state, draws = state_in(world), draws_in(world)
    if len(draws.drafts) == 0:
        return 1
    q = np.int64(state.row[WHO, rank, row])
    drafts = draws.drafts[q if len(draws.drafts) > 1 else 0]
    place = state.row[AT, rank, row] + state.ranks[rank].turn
    accepted = min(drafts, draws.accepted[place & RING_MASK])
    return min(1 + accepted, state.row[UNTIL, rank, row] - state.row[USED, rank, row])


@jitable
def needed(world, shift, rank):  # type: ignore[no-untyped-def]
    """KV that a rank needs for the step that is being started: that of every row, what it grows by included."""
    state = state_in(world)
    total = 0
    for j in range(state.ranks[rank].rows):
        grown = 0 if state.row[LACK, rank, j] > 0 else growth(world, rank, j)
        total += held_tokens(state.row[USED, rank, j] + grown, shift)
    return total


@jitable
def take_row(world, shift, rank, request, until, lack):  # type: ignore[no-untyped-def]
    """Admit a request as the last row."""
    state = state_in(world)
    lengths = prices_in(world).saturation_tokens
    row, size = state.ranks[rank].rows, state.requests[request].size
    state.row[WHO, rank, row] = request
    state.row[USED, rank, row] = size
    state.row[UNTIL, rank, row] = until
    state.row[LACK, rank, row] = lack
    state.ranks[rank].rows = row + 1
    state.ranks[rank].fresh = 0
    state.ranks[rank].lacking += lack > 0
    state.ranks[rank].context += size
    state.ranks[rank].resident += held_tokens(size, shift)
    for s in range(len(lengths)):
        state.saturated[RUNNING, rank, s] += min(size, lengths[s])


@jitable
def drop_row(world, shift, rank):  # type: ignore[no-untyped-def]
    """Take the last row away; its request keeps the context that it had."""
    state = state_in(world)
    lengths = prices_in(world).saturation_tokens
    row = state.ranks[rank].rows - 1
    q, used = np.int64(state.row[WHO, rank, row]), state.row[USED, rank, row]
    state.ranks[rank].rows = row
    state.ranks[rank].fresh = 0
    state.ranks[rank].lacking -= state.row[LACK, rank, row] != 0
    state.ranks[rank].context -= used
    state.ranks[rank].resident -= held_tokens(used, shift)
    for s in range(len(lengths)):
        state.saturated[RUNNING, rank, s] -= min(used, lengths[s])
    state.requests[q].size = used
    return q


@jitable
def add_up(world, shift, rank):  # type: ignore[no-untyped-def]
    """Resident tokens and K of a rank from its rows: for steps in which nothing but `used` has changed."""
    state = state_in(world)
    count, used = state.ranks[rank].rows, state.row[USED, rank]
    if shift == 0:
        state.ranks[rank].resident = state.ranks[rank].context
    else:
        more, blocks = (1 << shift) - 1, 0
        for j in range(count):
            blocks += (used[j] + more) >> shift
        state.ranks[rank].resident = blocks << shift
    add_up_saturated(world, rank)


@jitable
def add_up_saturated(world, rank):  # type: ignore[no-untyped-def]
    """K of a rank from its rows."""
    state = state_in(world)
    lengths = prices_in(world).saturation_tokens
    count, used = state.ranks[rank].rows, state.row[USED, rank]
    for s in range(len(lengths)):
        length, total = lengths[s], 0
        for j in range(count):
            total += min(used[j], length)
        state.saturated[RUNNING, rank, s] = total


@jitable
def compute_prompts(world, chunk_tokens, rank, piece):  # type: ignore[no-untyped-def]
    """Let rows that lack tokens compute a chunk in this step; returns the tokens. Prices are added to `pieces`."""
    state, prefill = state_in(world), prefill_in(world)
    budget = chunk_tokens
    for t in range(len(prefill.token)):
        state.pieces[t, piece] = 0.0
    for j in range(state.ranks[rank].rows):
        lack = state.row[LACK, rank, j]
        if lack <= 0 or budget == 0:
            continue
        tokens = min(lack, budget)
        offset = state.row[USED, rank, j] - lack
        for t in range(len(prefill.token)):
            state.pieces[t, piece] += chunk_work(prefill, t, offset, tokens)
        budget -= tokens
        state.row[LACK, rank, j] = lack - tokens if lack > tokens else -1
    return chunk_tokens - budget


@jitable
def unqueue(world, shift, rank):  # type: ignore[no-untyped-def]
    """Take the first request from an engine queue."""
    state = state_in(world)
    lengths = prices_in(world).saturation_tokens
    q = take_first(state.lists, state.requests, rank)
    size = state.requests[q].size
    state.ranks[rank].queued -= 1
    state.ranks[rank].queued_context -= size
    state.ranks[rank].queued_resident -= held_tokens(size, shift)
    for s in range(len(lengths)):
        state.saturated[QUEUED, rank, s] -= min(size, lengths[s])
    return q


@jitable
def count_queued(world, shift, rank, request):  # type: ignore[no-untyped-def]
    """Count a request into an engine queue that it has joined."""
    state = state_in(world)
    lengths = prices_in(world).saturation_tokens
    size = state.requests[request].size
    state.ranks[rank].queued += 1
    state.ranks[rank].queued_context += size
    state.ranks[rank].queued_resident += held_tokens(size, shift)
    for s in range(len(lengths)):
        state.saturated[QUEUED, rank, s] += min(size, lengths[s])


@jitable
def set_place(world, rank, row, place):  # type: ignore[no-untyped-def]
    """Let a row read its draws from a place of the ring on."""
    state = state_in(world)
    at = place - state.ranks[rank].turn
    state.row[AT, rank, row] = at
    state.row[WINDOW, rank, row] = state.windows[at & RING_MASK]


@jitable
def grow_all(world, rank):  # type: ignore[no-untyped-def]
    """What every row of a rank yields in the step that is being started, none of them lacking: `growth`, all at once.

    Returns the tokens of all together. Rows alike in their drafts only.
    """
    state = state_in(world)
    rows, bits = state.ranks[rank].rows, state.window_bits
    used, until, window, grown = (
        state.row[USED, rank], state.row[UNTIL, rank], state.row[WINDOW, rank], state.row[GROW, rank]
    )  # fmt: skip
    shift, mask = bits * state.ranks[rank].turn, (1 << bits) - 1
    total = 0
    for j in range(rows):
        tokens = min(1 + ((window[j] >> shift) & mask), until[j] - used[j])
        grown[j] = tokens
        total += tokens
    return total


@jitable
def next_turn(world, rank):  # type: ignore[no-untyped-def]
    """Go on to the next draw of all rows of a rank."""
    state = state_in(world)
    turn = state.ranks[rank].turn + 1
    if turn == state.window_draws:
        turn = 0
        at, window, windows = state.row[AT, rank], state.row[WINDOW, rank], state.windows
        for j in range(state.ranks[rank].rows):
            at[j] += state.window_draws
            window[j] = windows[at[j] & RING_MASK]
    state.ranks[rank].turn = turn


@jitable
def take_tokens(world, shift, rank):  # type: ignore[no-untyped-def]
    """Give every row of a rank, none of them lacking, its tokens, and see what the next step yields: all in one pass.

    Resident tokens and K are counted anew. Returns how many rows have all their tokens. Rows alike in their drafts
    only.
    """
    state = state_in(world)
    rows, used, until = state.ranks[rank].rows, state.row[USED, rank], state.row[UNTIL, rank]
    more, blocks, done = (1 << shift) - 1, 0, 0
    state.ranks[rank].context += state.ranks[rank].yields
    if len(draws_in(world).drafts) == 0:
        for j in range(rows):
            now = used[j] + 1
            used[j] = now
            done += now == until[j]
            blocks += (now + more) >> shift
    else:
        next_turn(world, rank)
        window, grown = state.row[WINDOW, rank], state.row[GROW, rank]
        bits = state.window_bits
        place, mask = bits * state.ranks[rank].turn, (1 << bits) - 1
        yields = 0
        for j in range(rows):
            now = used[j] + grown[j]
            used[j] = now
            left = until[j] - now
            done += left == 0
            blocks += (now + more) >> shift
            tokens = min(1 + ((window[j] >> place) & mask), left)
            grown[j] = tokens
            yields += tokens
        state.ranks[rank].yields = yields
    state.ranks[rank].fresh = 1
    state.ranks[rank].resident = blocks << shift
    add_up_saturated(world, rank)
    return done
