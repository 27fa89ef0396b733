"""Small fleets worked out by hand: every step takes one second unless said otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from fleet_cases import case_of, changes_of

from equipoise.cost.prefill import PrefillCost, PrefillTerm
from equipoise.cost.step_cost import StepCost, Term
from equipoise.fleet.kernel.layout import (
    ABORTED,
    COUNTS,
    DELAYED,
    DIE,
    DRAIN,
    DROPPED,
    FAILED,
    FINISHED,
    NOTICED,
    ON_RANKS,
    PARTS,
    PREFILL_POOL,
    RECOMPUTE,
    RETURN,
    SWAP,
)
from equipoise.replay import Information, Pool
from equipoise.replay.layout import ENDED, TOTALS
from equipoise.traces.trace import Trace

SECOND = StepCost("a second a step", (Term("none", per_request=0.0),), constant=1.0, us_per_unit=1e6)


def fleet(arrival_s, context, output, pool=None, cost=SECOND, policy="least_batch", session=None, **how):
    n = max(np.size(arrival_s), np.size(context), np.size(output))
    columns = [np.broadcast_to(c, n) for c in (np.asarray(arrival_s, float), context, output)]
    trace = Trace.from_columns("hand", *columns, session=session)
    how = {"mode": "timed", "warmup_turnovers": 0.0} | how
    return case_of(trace, pool or Pool(ranks=1), policy, cost, **how)


def switched(case, **life):
    case.life = case.life._replace(**life)
    return case


def test_prompts_that_take_a_time_and_travel():
    case = switched(
        fleet([0.0, 0.0], [10, 20], 2),
        prefill=DELAYED, prefill_s=0.5, prefill_s_per_token=0.1,
        transfer_s=0.25, transfer_s_per_token=0.01, cached_tokens=np.array([4, 30]),
    )  # fmt: skip
    out, more = case.run()
    # 0.5 + 6 * 0.1 + 0.25 + 10 * 0.01 = 1.45; the second has all cached: 0.5 + 0.25 + 0.2 = 0.95
    assert more.queued_s == pytest.approx([1.45, 0.95])
    assert out.start_s == pytest.approx([1.95, 0.95])  # at the boundary after it came
    assert more.ended_s == pytest.approx([3.95, 2.95])


def test_prefill_pool_steps_by_chunks():
    case = switched(
        fleet(0.0, [10, 3, 4], 1, Pool(ranks=1)),
        prefill=PREFILL_POOL, prefill_instances=1, prefill_ranks=2, chunk_tokens=6,
    )  # fmt: skip
    case.prefill_prices = PrefillCost((PrefillTerm("all", per_token=1.0),), constant=0.5).prices()
    _, more = case.run()
    # The first prompt goes to rank 0, the others to rank 1. Step 1: 6 | 3 + 3 tokens, until 6.5; step 2: 4 | 1.
    assert more.queued_s.tolist() == [11.0, 6.5, 11.0]
    assert more.counts[COUNTS.PREFILL_STEPS] == 2
    assert more.counts[COUNTS.PREFILL_TOKENS] == 17


def test_prompts_computed_in_mixed_steps():
    case = switched(fleet([0.0, 0.5], [3, 7], 4), prefill=ON_RANKS, chunk_tokens=4)
    case.prefill_prices = PrefillCost((PrefillTerm("all", per_token=0.25),), constant=0.0).prices()
    out, more = case.run()
    # Step 1: 3 prompt tokens, 1.75 s. Step 2: a token of the first and 4 prompt tokens, 2 s. Step 3: 3 of them, 1.75 s.
    # Then they decode side by side, a second a step.
    assert more.first_s.tolist() == [1.75 + 2.0, 1.75 + 2.0 + 1.75 + 1.0]
    assert more.counts[COUNTS.MIXED_STEPS] == 3
    assert more.counts[COUNTS.MIXED_TOKENS] == 10
    assert more.parts[PARTS.MIXED] == pytest.approx(0.25 * 3)  # the others belong to the drain
    assert out.ended[ENDED.STEPS] == 7


@pytest.mark.parametrize("kind", [RECOMPUTE, SWAP])
def test_the_last_to_come_is_preempted(kind):
    case = switched(
        fleet(0.0, [40, 40], [10, 15], Pool(ranks=1, kv_capacity_tokens=90)),
        preemption=kind, freeze_steps=0, chunk_tokens=1000, swap_s_per_token=0.5,
    )  # fmt: skip
    case.prefill_prices = PrefillCost((PrefillTerm("all", per_token=1.0),)).prices()
    out, more = case.run()
    # Five steps fill 90 tokens; in the sixth the second leaves with 45 tokens, and comes back after the tenth.
    away_s = 1.0 + 45 * 0.5 if kind == SWAP else 1.0  # the step that swaps out
    first_ends = 5 + away_s + 4
    back_s = (
        first_ends + 1 + (45 * 0.5 if kind == SWAP else 45)
    )  # swapped in, or computed anew without decoding
    assert more.preemptions.tolist() == [0, 1]
    assert more.ended_s.tolist() == [first_ends, back_s + (9 if kind == SWAP else 10)]
    recomputed, swapped = more.counts[[COUNTS.RECOMPUTED_TOKENS, COUNTS.SWAPPED_TOKENS]]
    assert (recomputed, swapped) == ((45, 0) if kind == RECOMPUTE else (0, 90))
    assert out.totals[TOTALS.OVER_CAPACITY] == 0


def test_a_rank_that_preempted_admits_nothing_for_a_while():
    case = switched(
        fleet(0.0, [40, 40], [12, 20], Pool(ranks=1, kv_capacity_tokens=90)), preemption=SWAP, freeze_steps=8
    )
    _, more = case.run()
    # Frozen from the sixth step to the thirteenth, which runs nothing: the first request ended with the twelfth.
    assert more.ended_s.tolist() == [12.0, 13.0 + 15.0]
    assert more.counts[COUNTS.FROZEN_RANK_STEPS] == 8


def test_the_preempted_come_back_in_their_order():
    case = switched(
        fleet(0.0, [30, 30, 30], [30, 25, 6], Pool(ranks=1, kv_capacity_tokens=100)), preemption=SWAP
    )
    _, more = case.run()
    # The third leaves at 3 s, the second at 20 s. The third would fit then, but the second is before it.
    assert more.preemptions.tolist() == [0, 1, 1]
    assert more.ended_s.tolist() == [30.0, 35.0, 33.0]


def test_one_that_outgrows_its_rank_fails():
    case = switched(fleet(0.0, 40, 30, Pool(ranks=1, kv_capacity_tokens=50)), preemption=RECOMPUTE)
    _, more = case.run()
    assert more.status.tolist() == [FAILED]
    assert more.tokens.tolist() == [10]
    assert more.counts[COUNTS.OUTGROWN] == 1


def test_blocks_are_held_whole():
    pool = Pool(ranks=1, kv_capacity_tokens=64)
    whole = switched(fleet(0.0, [17, 33], 1, pool), block_tokens=16, block_shift=4)
    out, _ = whole.run()
    assert out.start_s.tolist() == [0.0, 1.0]  # 32 + 48 tokens
    out, _ = fleet(0.0, [17, 33], 1, pool).run()
    assert out.start_s.tolist() == [0.0, 0.0]


def test_clients_leave_early_and_lose_patience():
    case = switched(
        fleet([0.0, 0.1, 0.1], 10, [5, 5, 5], Pool(ranks=1, max_batch=1)),
        leaves_after=np.array([2, 100, 100]), patience_s=4.0,
    )  # fmt: skip
    _, more = case.run()
    assert more.status.tolist() == [ABORTED, FINISHED, ABORTED]
    assert more.tokens.tolist() == [2, 5, 0]
    assert more.ended_s.tolist() == [2.0, 7.0, 5.0]  # 4.9 s at the first boundary after four


def test_turns_follow_each_other():
    case = switched(
        fleet([0.0, 0.0, 0.0, 0.0], [10, 10, 99, 10], 2, Pool(ranks=1, kv_capacity_tokens=50), session=[7, 7, 7, 7]),
        sessions=1, first_rows=np.array([0], np.int32), next_turn=np.array([1, 2, 3, -1], np.int32),
        think_s=np.array([0.0, 3.5, 1.0, 1.0]),
    )  # fmt: skip
    out, more = case.run()
    assert more.came_s[:3].tolist() == [0.0, 5.5, 8.5]
    assert more.status.tolist() == [FINISHED, FINISHED, 3, DROPPED]
    assert np.isnan(more.came_s[3])
    assert out.ended[ENDED.ARRIVED] == 3


def test_speculation_reads_its_draws_in_turn():
    case = fleet(0.0, 10, 12)
    accepted = np.zeros(1 << 16, np.int32)
    accepted[[5, 6, 7, 9]] = [2, 9, 0, 1]
    case.draws = case.draws._replace(
        drafts=np.array([3], np.int32), accepted=accepted, phase=np.array([5], np.int32)
    )
    out, more = case.run()
    # 1 + 2, 1 + 3 (of nine, three were drafted), 1, 1, 1 + 1, then the one token that is left
    assert out.ended[ENDED.STEPS] == 6
    assert more.counts[COUNTS.QUERY_TOKENS] == 6 * 4
    assert more.first_s.tolist() == [1.0]


def test_a_rank_that_dies_loses_what_it_held():
    case = switched(fleet([0.0, 0.0], 10, 6, Pool(ranks=2)), retry_s=0.25, most_tries=3)
    case.changes = changes_of((2.5, DIE, 0, 1, 0.0), (2.5, DIE + NOTICED, 0, 1, 0.0))
    _, more = case.run()
    # Two tokens are there when it dies; it comes again at 2.75 and joins the other rank at the next boundary.
    assert more.tries.tolist() == [0, 1]
    assert more.queued_s.tolist() == [0.0, 2.75]
    assert more.ended_s.tolist() == [6.0, 7.0]
    assert more.counts[COUNTS.LOST_TOKENS] == 12


def test_an_instance_that_dies_and_comes_back_stalled():
    case = switched(fleet(0.0, 10, 4), retry_s=0.0, most_tries=1)
    case.changes = changes_of((1.5, DIE, 0, -1, 0.0), (4.0, RETURN, 0, -1, 3.0))
    out, more = case.run()
    # A token is there; it comes again at once, to a router that has not noticed, and is lost for good.
    assert more.status.tolist() == [FAILED]
    case.changes = changes_of(
        (1.5, DIE, 0, -1, 0.0), (1.5, DIE + NOTICED, 0, -1, 0.0),
        (4.0, RETURN, 0, -1, 3.0), (4.0, RETURN + NOTICED, 0, -1, 0.0),
    )  # fmt: skip
    out, more = case.run()
    assert more.status.tolist() == [
        FAILED
    ]  # both changes at 1.5 are events of their own: it is sent in between
    case.life = case.life._replace(retry_s=0.1)
    out, more = case.run()
    assert more.status.tolist() == [FINISHED]
    assert more.ended_s.tolist() == [4.0 + 3.0 + 3.0]
    assert out.ended[ENDED.STEPS] == 5


def test_nothing_goes_to_a_drained_rank():
    case = fleet([0.0, 0.5, 0.5], 10, 3, Pool(ranks=2))
    case.changes = changes_of((0.0, DRAIN + NOTICED, 0, 0, 0.0))
    out, _ = case.run()
    assert out.rank.tolist() == [1, 1, 1]


def test_price_parts_by_hand():
    case = fleet([0.0] * 3 + [9.0], 10, 1, Pool(ranks=2), cost=StepCost("b", (Term("t"),), us_per_unit=1e6))
    case.extras = case.extras._replace(
        overhead=0.5, graph_sizes=np.array([4, 8]), ffn_per_mean=1.0, ffn_per_max=2.0, skew=np.full(1 << 16, 1.5),
        comm_fixed=0.25, comm_per_mean=0.5, comm_per_max=1.0, uneven=1,
    )  # fmt: skip
    case.ranked = case.ranked._replace(slowness=np.array([1.0, 3.0]))
    out, more = case.run()
    # One step counts: batches 2 and 1, a mean of 1.5, padded to 4. The second rank takes three times as long.
    ffn, comm = 1.5 + 2.0 * 4, 0.25 + 0.5 * 1.5 + 4
    expected = [2.0, 2.0, 12.0 - 4.0, 0.5, ffn, ffn / 2, comm, 0.0, 0.0, 1.5]
    assert more.parts.tolist() == pytest.approx(expected)
    assert out.totals[TOTALS.IDEAL] == pytest.approx(1.5 + 0.5 + 4.5 + 2.25 + 0.25 + 2.25)


def test_a_report_shows_what_a_replica_cannot_count():
    """Two replicas, each counting its own: the picture of the other's requests comes with reports alone."""
    for late, expected in ((0, [0, 1, 0]), (50, [0, 0, 0])):
        information = Information("ledger", 2, delay_steps=late)
        case = fleet([0.0, 2.5, 20.0], 10, [5, 5, 1], Pool(ranks=2), information=information)
        out, _ = case.run()
        assert out.rank.tolist() == expected
