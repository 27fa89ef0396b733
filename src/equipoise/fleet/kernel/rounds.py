"""A round of placement: who waits too long leaves, who is asked about, what is done with the answers."""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.fleet.kernel.layout import ABORTED, BY_INSTANCE, COUNTS, EXACT
from equipoise.fleet.kernel.life import end_request, lose
from equipoise.fleet.kernel.lists import append, one_of
from equipoise.fleet.kernel.pictures import count_dispatch, held_tokens, refresh
from equipoise.fleet.kernel.routers import FREE_TOKENS
from equipoise.fleet.kernel.rows import count_queued
from equipoise.fleet.kernel.state import CHOSEN, HELD, NOBODY, OFFERED, TALLY, TURN
from equipoise.fleet.kernel.world import (
    life_in,
    more_in,
    out_in,
    pool_in,
    seen_in,
    settings_in,
    state_in,
    work_in,
)
from equipoise.replay.layout import BAD_RANK, ENDED, MAX_ROUND, NO_ROOM

__all__ = ["draw_up", "give_up", "keep_waiting", "take_answers"]


@jitable
def give_up(world, now):  # type: ignore[no-untyped-def]
    """Requests that have waited longer than their client has patience leave; the longest waiting stand first."""
    life, state = life_in(world), state_in(world)
    tally = state.tally
    gone = 0
    while (
        gone < tally[TALLY.HELD] and now - state.requests[state.round[HELD, gone]].joined_s > life.patience_s
    ):
        end_request(world, state.round[HELD, gone], ABORTED, now)
        gone += 1
    if gone > 0:
        for j in range(gone, tally[TALLY.HELD]):
            state.round[HELD, j - gone] = state.round[HELD, j]
            state.round[OFFERED, j - gone] = state.round[OFFERED, j]
        tally[TALLY.HELD] -= gone
        tally[TALLY.WAITING] -= gone
    while (
        tally[TALLY.HELD] == 0
        and tally[TALLY.QUEUE_FIRST] != NOBODY
        and now - state.requests[tally[TALLY.QUEUE_FIRST]].joined_s > life.patience_s
    ):
        q = tally[TALLY.QUEUE_FIRST]
        tally[TALLY.QUEUE_FIRST] = state.requests[q].following
        if tally[TALLY.QUEUE_FIRST] == NOBODY:
            tally[TALLY.QUEUE_LAST] = NOBODY
        tally[TALLY.WAITING] -= 1
        end_request(world, q, ABORTED, now)


@jitable
def draw_up(world, asked, now):  # type: ignore[no-untyped-def]
    """Fill `asked` with those that a policy has kept and then the queue, as many as a round takes; returns how many."""
    work, state, out, more = work_in(world), state_in(world), out_in(world), more_in(world)
    tally, shift = state.tally, life_in(world).block_shift
    instances, boundaries = pool_in(world).instances, state.tally[TALLY.BOUNDARIES]
    size = tally[TALLY.HELD]
    while size < MAX_ROUND and tally[TALLY.QUEUE_FIRST] != NOBODY:
        q = tally[TALLY.QUEUE_FIRST]
        tally[TALLY.QUEUE_FIRST] = state.requests[q].following
        state.round[HELD, size], state.round[OFFERED, size] = q, boundaries
        size += 1
    if tally[TALLY.QUEUE_FIRST] == NOBODY:
        tally[TALLY.QUEUE_LAST] = NOBODY
    for j in range(size):
        q = state.round[HELD, j]
        asked.context_tokens[j] = state.requests[q].size
        asked.reserve_tokens[j] = held_tokens(state.requests[q].size, shift)
        asked.session[j] = one_of(work.session, q)
        asked.request[j] = q
        since = boundaries - state.round[OFFERED, j]
        asked.waited_steps[j] = since // instances if since > 0 else 0
        asked.waited_s[j] = now - state.requests[q].joined_s
        state.round[CHOSEN, j] = -1
    out.ended[ENDED.ROUNDS] += 1
    more.counts[COUNTS.DECISIONS] += size
    return size


@jitable
def take_answers(world, replica, number, requests, answers, reserve, now):  # type: ignore[no-untyped-def]
    """Send requests where the policy of a replica wants them, in order; stops at an answer that its view forbids.

    Parameters
    ----------
    world : int
    replica, number : int
        Who has chosen, and the number of the view it was shown.
    requests : Requests
        What it was asked about: those at `TURN` of the round.
    answers : int64[requests]
    reserve : int
        Growth reserve, in tokens.
    now : float

    Returns
    -------
    bool
        Whether all answers were allowed; if not, the error is in ``ended``.
    """
    life, settings, state, seen, out, more = (
        life_in(world),
        settings_in(world),
        state_in(world),
        seen_in(world),
        out_in(world),
        more_in(world),
    )
    tally, ended, width, shift = state.tally, out.ended, pool_in(world).ranks_per_instance, life.block_shift
    shares, reports, exact = life.split == BY_INSTANCE, settings.knows != EXACT, len(seen.own)
    judge = exact if shares else number
    for j in range(len(answers)):
        q, r = state.round[HELD, state.round[TURN, j]], answers[j]
        state.round[CHOSEN, state.round[TURN, j]] = r
        if r == -1:
            continue
        code = 0 if 0 <= r < len(state.ranks) else BAD_RANK
        if code == 0:
            refresh(world, reserve, judge, r, r + 1, r // width)
            if seen.shown[FREE_TOKENS, judge, r] < requests.reserve_tokens[j]:
                code = NO_ROOM
        if code:
            ended[ENDED.ERROR], ended[ENDED.ERROR_REQUEST], ended[ENDED.ERROR_RANK] = code, q, r
            return False
        p = r // width
        out.rank[q] = r
        lives = state.ranks[r].up == 1
        if settings.keep_requests:
            more.placed_s[q] = now
        more.counts[COUNTS.DISPATCHED] += 1
        tally[TALLY.WAITING] -= 1
        tally[TALLY.IDLE_ROUNDS] = 0
        if lives:
            append(state.lists, state.requests, r, q)
            count_queued(world, shift, r, q)
            state.instances[p].load += 1
            tally[TALLY.IN_POOL] += 1
        else:
            lose(world, q, now)
        if reports:
            count_dispatch(world, shift, replica, r, q, requests.context_tokens[j], now, lives)
            refresh(world, reserve, replica, r, r + 1, p)
        if not reports or shares:
            refresh(world, reserve, exact, r, r + 1, p)
    return True


@jitable
def keep_waiting(world, size):  # type: ignore[no-untyped-def]
    """Keep those of a round that were not placed, in order; returns how many."""
    state, ended = state_in(world), out_in(world).ended
    before, holding = state.tally[TALLY.HELD], 0
    for j in range(size):
        if state.round[CHOSEN, j] == -1:
            ended[ENDED.BLOCKED_REQUESTS] += j >= before
            ended[ENDED.BLOCKED_ROUNDS] += 1
            state.round[HELD, holding] = state.round[HELD, j]
            state.round[OFFERED, holding] = state.round[OFFERED, j]
            holding += 1
    state.tally[TALLY.HELD] = holding
    return holding
