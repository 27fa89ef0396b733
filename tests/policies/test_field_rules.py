"""The routers of engines and gateways, and SBS, against their rules written down naively."""

from __future__ import annotations

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_pools import COST, Pool

from equipoise.policies import get
from equipoise.testing.policy_contract import ask
from equipoise.testing.rounds import make_round, rounds

TINY = 1e-9
exactly = settings(max_examples=200, deadline=None, derandomize=True)


def use_of(case):
    """Share of the KV cache in use, as the ranks report it."""
    return [
        Fraction(c, c + max(f, 0)) if c + max(f, 0) > 0 else Fraction(0)
        for c, f in zip(case.ranks.context_tokens.tolist(), case.ranks.free_tokens.tolist(), strict=True)
    ]


def answer(text, case, memory=None):
    policy = get(text.partition(",")[0], **dict(p.split("=") for p in text.split(",")[1:]))
    return ask(policy, case, case.memory(policy) if memory is None else memory, compiled=True)


@exactly
@given(rounds(max_requests=12), st.integers(0, 20), st.data())
def test_vllm_scores_and_rotation(case, begin, data):
    """max(in flight, waiting + running), the queue's penalty by KV use, first of equals in rotation."""
    unseen = [data.draw(st.integers(0, b)) for b in case.ranks.batch.tolist()]
    case.ranks = case.ranks._replace(unseen_requests=np.array(unseen, np.int64))
    pool, use, waiting, at = Pool(case), use_of(case), list(unseen), begin
    policy = get("vllm_033")
    memory = case.memory(policy)
    memory.ints[0] = begin % len(unseen)
    found = ask(policy, case, memory, compiled=True)
    for i, chosen in enumerate(found.chosen):
        fitting = pool.fitting(i)
        if not fitting:
            assert set(found.chosen[i:]) == {-1}
            break
        order = [(at + k) % len(unseen) for k in pool.ranks]
        running = [b - w for b, w in zip(pool.batch, waiting, strict=True)]
        score = [
            w + n + (w * 6 * max(Fraction(0), k - Fraction(1, 2)) if w else 0)
            for w, n, k in zip(waiting, running, use, strict=True)
        ]
        least = min(score[r] for r in fitting)
        close = [r for r in order if r in fitting and score[r] <= least + TINY]
        assert chosen in close
        if all(score[r] == least for r in close) and float(least).is_integer():
            assert chosen == close[0]
        pool.put(i, chosen)
        waiting[chosen] += 1
        at += 1
    assert found.memory.ints.tolist() == [at % len(unseen)]


@exactly
@given(rounds(max_requests=12))
def test_sglang_takes_the_smallest_pair(case):
    pool = Pool(case)
    expected = pool.oldest_first(
        lambda i, fitting: min(fitting, key=lambda r: (pool.tokens[r], pool.batch[r]))
    )
    assert answer("sglang_total_tokens", case).chosen == expected


@exactly
@given(rounds(max_requests=12), st.lists(st.integers(0, 200), min_size=8, max_size=8))
def test_trtllm_fair_share_by_prompts(case, prompts):
    """The heap of (prompt tokens, requests, rank), fed with the requests of one iteration, longest first."""
    pool, policy = Pool(case), get("trtllm_adp")
    memory = case.memory(policy)
    memory.ints[:] = prompts[: len(memory.ints)]
    found = ask(policy, case, memory, compiled=True)
    held = [p if b > 0 else 0 for p, b in zip(prompts, pool.batch, strict=False)]
    count = pool.fetched()
    share = max(-(-(sum(pool.batch) + count) // len(pool.batch)), *pool.batch)
    for i in sorted(range(count), key=lambda i: (-pool.lengths[i], i)):
        heap = sorted((held[r], pool.batch[r], r) for r in pool.fitting(i) if pool.batch[r] < share)
        if heap:
            r = heap[0][2]
            pool.put(i, r)
            held[r] += pool.lengths[i]
    assert found.chosen == pool.chosen
    assert found.memory.ints.tolist() == held


def test_trtllm_does_not_count_generated_tokens():
    """A rank whose requests have generated much looks as light as when they came; what ends takes its prompt along."""
    policy = get("trtllm_adp")
    case = make_round([[], []], [100, 40], COST)
    memory = ask(policy, case, case.memory(policy)).memory
    assert memory.ints.tolist() == [100, 40]
    grown = make_round([[110], [5000]], [30], COST)
    assert ask(policy, grown, memory).chosen == [1]
    policy.spec.finished(memory, policy.param_array(), 0, 0, 100, 10)
    assert memory.ints.tolist() == [0, 40]
    assert ask(policy, make_round([[7], [5000]], [30], COST), memory).chosen == [0]


@exactly
@given(
    rounds(max_requests=12),
    st.integers(1, 64),
    st.integers(0, 64),
    st.booleans(),
    st.lists(st.integers(0, 20), min_size=8, max_size=8),
)
def test_dynamo_blocks_plus_requests(case, size, weight16, resident, blocks):
    """Decode blocks with the request's own, plus weight times active requests."""
    weight = Fraction(weight16, 16)
    text = f"dynamo_kv,weight={float(weight)},block_size={size},track_output_blocks={resident}"
    pool, memory = Pool(case), case.memory(get("dynamo_kv"))
    memory.ints[:] = blocks[: len(memory.ints)]
    held = [p if b > 0 else 0 for p, b in zip(blocks, pool.batch, strict=False)]

    def choose(i, fitting):
        own = -(-pool.lengths[i] // size)

        def cost(r):
            potential = -(-(pool.tokens[r] + pool.lengths[i]) // size) if resident else held[r] + own
            return potential + weight * pool.batch[r]

        best = min(fitting, key=cost)
        held[best] += own
        return best

    expected = pool.oldest_first(choose)
    found = answer(text, case, memory)
    assert found.chosen == expected
    assert found.memory.ints.tolist() == held


@exactly
@given(rounds(max_requests=12), st.integers(0, 64), st.integers(1, 4000))
def test_smg_time_to_drain_and_kv_barrier(case, pressure16, throughput):
    pressure = Fraction(pressure16, 16)
    found = answer(f"smg_least_load,pressure_s={float(pressure)},throughput={throughput}", case).chosen
    pool, sent = Pool(case), [0] * len(case.ranks.batch)
    used = [min(k, Fraction(999, 1000)) for k in use_of(case)]
    for i, chosen in enumerate(found):
        fitting = pool.fitting(i)
        if not fitting:
            assert set(found[i:]) == {-1}
            break
        score = [Fraction(s, throughput) + pressure * k / (1 - k) for s, k in zip(sent, used, strict=True)]
        assert score[chosen] <= min(score[r] for r in fitting) + Fraction(TINY)
        pool.put(i, chosen)
        sent[chosen] += pool.lengths[i]


@exactly
@given(rounds(max_requests=12), st.integers(0, 48))
def test_sbs_masks_outliers_and_fills_batches(case, k16):
    k, pool = Fraction(k16, 16), Pool(case)
    for i in sorted(range(pool.fetched()), key=lambda i: (-pool.lengths[i], i)):
        tokens = [Fraction(c) for c in pool.tokens]
        q1, _, q3 = statistics.quantiles(tokens, n=4, method="inclusive") if len(tokens) > 1 else 3 * tokens
        fitting = pool.fitting(i)
        unmasked = [r for r in fitting if pool.tokens[r] <= q3 + k * (q3 - q1)]
        if fitting:
            pool.put(i, min(unmasked or fitting, key=lambda r: (pool.batch[r], pool.tokens[r])))
    assert answer(f"iqr_lex,k={float(k)}", case).chosen == pool.chosen


def test_sbs_guards_a_rank_with_few_but_long_requests():
    running = [[10] * 3, [10] * 3, [12] * 3, [11] * 3, [500]]
    assert answer("iqr_lex", make_round(running, [20], COST)).chosen == [0]
    assert answer("iqr_lex,k=1000", make_round(running, [20], COST)).chosen == [4]


def test_sbs_masks_what_is_above_the_fence_only():
    """Four of five ranks hold the same: the fence is what they hold, and they stay in the running."""
    running = [[10], [10], [10], [10], [3, 3, 3]]
    assert answer("iqr_lex", make_round(running, [20], COST)).chosen == [0]


@exactly
@given(rounds(max_requests=12), st.integers(1, 5))
def test_trtllm_admission_pair_by_pair(case, look_ahead):
    """Fewest tokens below the largest batch; the longest request that keeps the largest token count."""
    pool = Pool(case)
    for first in range(0, len(pool.lengths), look_ahead):
        window = [*pool.requests][first : first + look_ahead]
        while window:
            open_ranks = sorted({r for i in window for r in pool.fitting(i)})
            if not open_ranks:
                break
            most_requests, most_tokens = max(pool.batch), max(pool.tokens)
            below = [r for r in open_ranks if pool.batch[r] < most_requests]
            rank = min(below or open_ranks, key=lambda r: pool.tokens[r])
            here = [i for i in window if rank in pool.fitting(i)]
            within = [i for i in here if pool.tokens[rank] + pool.lengths[i] <= most_tokens]
            pick = (
                max(within, key=lambda i: pool.lengths[i])
                if within
                else min(here, key=lambda i: pool.lengths[i])
            )
            pool.put(pick, rank)
            window.remove(pick)
        if window:
            break
    assert answer(f"trtllm_kv_admission,look_ahead={look_ahead}", case).chosen == pool.chosen


@pytest.mark.parametrize("name", ["trtllm_kv_admission", "br0", "bf_io"])
def test_who_choosers_do_not_take_the_oldest_first(name):
    """Rank 1 lacks 60 tokens to the largest: the request of 55 fills it, though one of 5 is older."""
    case = make_round([[100], [40]], [5, 55, 9], COST)
    chosen = answer(name, case).chosen
    assert chosen[1] == 1
    assert -1 not in chosen
