"""The fleet kernel: a whole decode pool, from arrival to the last token, driven by a trace, a policy and a step cost.

Where `equipoise.replay` prices what a policy decides, this kernel also lives through what a deployed pool does to it:
prompts to compute, caches to move, engine queues, memory that fills up, clients that leave, ranks that die, reports
that are late. `equipoise.fleet.twin` is the slow, obvious twin: same results, bit for bit.

Rules, in the order of one event (a change of the pool, an instance at its step boundary, the end of a prefill step, or
a request that comes while an instance is idle; ties in this order, then lowest instance first):

1. The event itself: the step that ends gives every request it ran its tokens; ranks go down or come back.
2. Requests that have come are sent to prefill, or join the routers' queue.
3. Reports that are due come in.
4. Rounds of placement: what a policy places joins the engine queue of its rank.
5. Instances at a boundary with work start a step: the engine makes room for what grows, or preempts; it admits from its
   queues; the step is priced; its end is its start plus that price.

With everything switched off and one instance this is `equipoise.replay`, bit for bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from equipoise._jit import (
    FINISHED as FINISHED_SIGNATURE,
)
from equipoise._jit import (
    FLOATS,
    PLACE,
    PRICES,
    REQUESTS,
    address,
    borrowed,
    compiled,
    numba_type,
    shortened,
)
from equipoise.cost.prefill import PrefillPrices
from equipoise.fleet.kernel.changes import change_pool
from equipoise.fleet.kernel.coming import end_prefill, let_come
from equipoise.fleet.kernel.events import BOUNDARY, CHANGE, NO_EVENT, PREFILL_END, next_event, wait_in_vain
from equipoise.fleet.kernel.groups import place_in_groups, show_starts
from equipoise.fleet.kernel.instances import set_end
from equipoise.fleet.kernel.layout import (
    BY_INSTANCE,
    DELAYED,
    EXACT,
    PREFILL_POOL,
    Changes,
    Draws,
    Extras,
    FleetOutcome,
    FleetSettings,
    Life,
    Ranked,
)
from equipoise.fleet.kernel.lists import earliest, replica_of
from equipoise.fleet.kernel.pictures import (
    count_own,
    deliver,
    is_due,
    next_delivery_s,
    publish,
    refresh_instance,
    view_of,
)
from equipoise.fleet.kernel.rounds import draw_up, give_up, keep_waiting, take_answers
from equipoise.fleet.kernel.routers import Pictures
from equipoise.fleet.kernel.starting import start_step
from equipoise.fleet.kernel.state import (
    CHOSEN,
    HELD,
    IDLE,
    RUNNING,
    TALLY,
    TURN,
    FleetState,
)
from equipoise.fleet.kernel.steps import end_step
from equipoise.fleet.kernel.world import World
from equipoise.policies.views import take_requests
from equipoise.replay.kernel import sort_ascending
from equipoise.replay.layout import (
    ENDED,
    Outcome,
    PoolLayout,
    Work,
)
from equipoise.types import Floats2D, Ints2D, Memory

__all__ = ["fleet_run"]

SIGNATURE = types.void(
    numba_type(Work),
    numba_type(PoolLayout),
    numba_type(FleetSettings),
    numba_type(Life),
    numba_type(Ranked),
    numba_type(Extras),
    numba_type(Draws),
    numba_type(Changes),
    PRICES,
    numba_type(PrefillPrices),
    types.FunctionType(PLACE),
    types.FunctionType(FINISHED_SIGNATURE),
    FLOATS,
    numba_type(Ints2D),
    numba_type(Floats2D),
    numba_type(FleetState),
    numba_type(Pictures),
    REQUESTS,
    numba_type(Outcome),
    numba_type(FleetOutcome),
)


def _kernel() -> Any:
    def run(  # type: ignore[no-untyped-def]
        work, pool, settings, life, ranked, extras, draws, changes, prices, prefill, place, finished, params,
        memory_ints, memory_floats, state, seen, asked, out, more,
    ):  # fmt: skip
        """Run a trace through a fleet and fill ``out`` and ``more``.

        Parameters
        ----------
        work, pool, settings, life, ranked, extras, draws, changes
            The run, see `equipoise.fleet.kernel.layout` and `equipoise.replay.layout`.
        prices : Prices
        prefill : PrefillPrices
            In the unit of ``prices``.
        place, finished : function
            The policy, and what it learns.
        params : float64[...]
        memory_ints, memory_floats : [replicas * groups, ...]
        state : FleetState
        seen : Pictures
        asked : Requests
            Room for a round.
        out : Outcome
        more : FleetOutcome
        """
        work, pool, life, ranked, extras = (
            borrowed(work), borrowed(pool), borrowed(life), borrowed(ranked), borrowed(extras)
        )  # fmt: skip
        draws, changes, prices, prefill = (
            borrowed(draws), borrowed(changes), borrowed(prices), borrowed(prefill)
        )  # fmt: skip
        params, memory_ints, memory_floats = borrowed(params), borrowed(memory_ints), borrowed(memory_floats)
        state, seen, asked = borrowed(state), borrowed(seen), borrowed(asked)
        out, more = borrowed(out), borrowed(more)
        world = address(
            World(
                work,
                pool,
                settings,
                life,
                ranked,
                extras,
                draws,
                changes,
                prices,
                prefill,
                state,
                seen,
                out,
                more,
            )
        )
        instances, width = pool.instances, pool.ranks_per_instance
        ranks, n = instances * width, len(work.context_tokens)
        shift, reserve = life.block_shift, pool.growth_reserve_tokens
        lengths = prices.saturation_tokens
        ended, tally = out.ended, state.tally
        ended[ENDED.SERIES_STEPS] = 1
        most_growth = 1
        for j in range(len(draws.drafts)):
            most_growth = max(most_growth, 1 + draws.drafts[j])
        largest = 0
        for r in range(ranks):
            largest = max(largest, ranked.kv_capacity_tokens[r] - reserve)
        told_reports = settings.knows != EXACT
        shares = life.split == BY_INSTANCE
        # Where requests come on from an earlier stage, the load begins to fall with the last arrival.
        staged = life.sessions or (
            not settings.saturated
            and (life.prefill in (DELAYED, PREFILL_POOL) or life.transfer_s + life.transfer_s_per_token > 0)
        )
        owners = settings.replicas if shares else 0
        groups = len(state.bounds) - 1
        to_arrive = n if settings.saturated else len(life.first_rows)
        for p in range(instances):
            refresh_instance(world, reserve, width, p)
        leaf = len(state.end_s) // 2
        first_view = view_of(world, 0)
        memory = Memory(memory_ints[0], memory_floats[0])
        told = np.empty(ranked.rows * width if settings.tells_finished else 0, np.int64)
        now = 0.0
        while True:
            kind, at = next_event(world, to_arrive)
            i = 0
            if kind == NO_EVENT:
                if tally[TALLY.WAITING] == 0 and tally[TALLY.ARRIVED_ROWS] == to_arrive:
                    break
                if told_reports:
                    delivery_s = next_delivery_s(world)
                    if delivery_s < IDLE:
                        now = max(now, delivery_s)
                if wait_in_vain(world, now):
                    break
            else:
                now = max(now, at)

            # Rule 1: the event.
            if kind == CHANGE:
                i = change_pool(world, width, reserve, now)
            elif kind == BOUNDARY:
                i = earliest(state.end_s)
                set_end(world, i, IDLE)
                if state.instances[i].stalling:
                    state.instances[i].stalling = 0
                else:
                    state.instances[i].steps += 1
                    tally[TALLY.BOUNDARIES] += 1
                    count = end_step(world, width, i, now, told)
                    if count > 0:
                        g = state.group_of[i]
                        sort_ascending(told, count)
                        for j in range(count):
                            q = told[j]
                            k = (
                                i % settings.replicas
                                if shares
                                else replica_of(q, work.session, settings.replicas)
                            )
                            own = Memory(memory_ints[k * groups + g], memory_floats[k * groups + g])
                            finished(
                                own, params, q, out.rank[q] - state.bounds[g], work.context_tokens[q],
                                work.output_tokens[q],
                            )  # fmt: skip
                    if told_reports:
                        count_own(world, work.session, shift, width, i, now)
                        if is_due(world, i, now) or state.instances[i].load == 0:
                            publish(world, i, state.instances[i].steps, now)
                    refresh_instance(world, reserve, width, i)
            elif kind == PREFILL_END:
                end_prefill(world, now)

            # Rule 2: requests that have come.
            let_come(world, to_arrive, largest, now)

            # Rule 3: reports.
            if told_reports:
                for p in range(instances):
                    idle = state.end_s[leaf + p] == IDLE and state.instances[p].load == 0
                    if deliver(world, p, state.instances[p].steps, idle, now):
                        refresh_instance(world, reserve, width, p)

            # Rule 4: rounds of placement, until the queue is empty or the policy keeps a request.
            asks = kind in (BOUNDARY, CHANGE, NO_EVENT) or tally[TALLY.READY] > 0
            if asks and life.patience_s < IDLE:
                give_up(world, now)
            asks = asks and tally[TALLY.WAITING] > 0
            if asks and instances > 1 and groups == 1 and not told_reports and not shares:
                show_starts(world, 0, instances, now)
            while asks and tally[TALLY.WAITING] > 0:
                size = draw_up(world, asked, now)
                turns = settings.replicas if told_reports or shares or settings.replicas > 1 else 1
                for k in range(turns):
                    if turns == 1:
                        requests, answers = shortened(asked, size), shortened(state.round[CHOSEN], size)
                        for j in range(size):
                            state.round[TURN, j] = j
                    else:
                        count = 0
                        for j in range(size):
                            if replica_of(state.round[HELD, j], work.session, settings.replicas) == k:
                                state.round[TURN, count] = j
                                count += 1
                        if count == 0:
                            continue
                        requests = take_requests(asked, state.round[TURN][:count])
                        answers = np.full(count, -1, np.int64)
                    number = k if told_reports else 0
                    view = first_view if number == 0 else view_of(world, number)
                    if groups > 1 or shares:
                        place_in_groups(
                            world, number, k, owners, requests, place, params, memory_ints, memory_floats, now, answers,
                        )  # fmt: skip
                    elif k == 0:
                        place(view, requests, prices, params, memory, answers)
                    else:
                        place(
                            view, requests, prices, params, Memory(memory_ints[k], memory_floats[k]), answers
                        )
                    if not take_answers(world, k, number, requests, answers, reserve, now):
                        break
                if ended[ENDED.ERROR] or keep_waiting(world, size) > 0:
                    break
            if ended[ENDED.ERROR]:
                break
            draining = tally[TALLY.ARRIVED_ROWS] == to_arrive
            if draining and not staged:
                draining = tally[TALLY.WAITING] == 0 and (settings.saturated or tally[TALLY.HEAP] == 0)
            if draining and not settings.drain:
                break

            # Rule 5: instances at a boundary with work start a step.
            for p in range(instances):
                if (
                    state.end_s[leaf + p] == IDLE
                    and state.instances[p].load > 0
                    and state.instances[p].alive > 0
                ):
                    code = start_step(world, p, most_growth, draining, now)
                    if code:
                        ended[ENDED.ERROR] = code
                        break
            if ended[ENDED.ERROR]:
                break

        ended[ENDED.QUEUED] = tally[TALLY.WAITING]
        ended[ENDED.RUNNING] = tally[TALLY.IN_POOL]
        ended[ENDED.STEPS] = tally[TALLY.STARTED]
        residue = 0
        for r in range(ranks):
            rank_state = state.ranks[r]
            residue += (
                rank_state.rows + abs(rank_state.context) + abs(rank_state.resident) + rank_state.queued
            )
            for s in range(len(lengths)):
                residue += abs(state.saturated[RUNNING, r, s])
        ended[ENDED.RESIDUE] = residue

    run.__qualname__ = "run_fleet"
    return run


@cache
def fleet_run() -> Any:
    """Compile the kernel when it is first asked for."""
    return compiled(SIGNATURE, first_class=False)(_kernel())
