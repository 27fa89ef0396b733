"""The field's policies in replay: where they must agree with a plain rule, and that they balance at all."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.cost import load
from equipoise.policies import get
from equipoise.replay import Pool, replay
from equipoise.traces import synth
from equipoise.traces.trace import Trace

FIELD = (
    "vllm_033",
    "sglang_total_tokens",
    "trtllm_adp",
    "trtllm_kv_admission",
    "dynamo_kv",
    "smg_least_load",
    "iqr_lex",
    "br0",
    "brh",
    "fast_phi",
    "bf_io",
)
BY_BATCH_THEN_TOKENS = get("dynamo_kv", weight=2.0**40, block_size=1, track_output_blocks=True)


@pytest.fixture(scope="module")
def agentic():
    return synth("agentic-coding", requests=3000, seed=3)


def ran(trace, policy, mode="saturated", **pool):
    pool.setdefault("ranks", 8)
    return replay(
        trace, Pool(**pool), policy, load("v1"), mode=mode, concurrency=120 if mode == "saturated" else None
    )


def ranks_of(*arguments, **options):
    return ran(*arguments, **options).outcome.rank.tolist()


@pytest.mark.parametrize("capacity", [None, 4_000_000])
def test_resident_blocks_of_one_token_are_least_tokens(agentic, capacity):
    by_tokens = ranks_of(agentic, get("least_tokens"), kv_capacity_tokens=capacity)
    dynamo = get("dynamo_kv", block_size=1, track_output_blocks=True)
    assert ranks_of(agentic, dynamo, kv_capacity_tokens=capacity) == by_tokens
    # ties of tokens are ties of nothing on ranks that hold nothing: contexts are long and of all lengths
    assert ranks_of(agentic, get("sglang_total_tokens"), kv_capacity_tokens=capacity) == by_tokens


def test_one_request_at_a_time_leaves_nothing_to_choose_but_the_rank(agentic):
    """Rules that sort or choose requests, asked for one, take the smallest batch, of equals the fewest tokens."""
    n = 400
    sparse = Trace.from_columns(
        "sparse",
        np.arange(n, dtype=np.float64),  # far longer than a step: every request is alone in its round
        agentic.context_tokens[:n],
        np.full(n, 40, np.int64),
    )
    clock = load("v1")
    assert clock.us_per_unit < 2e4
    expected = ranks_of(sparse, BY_BATCH_THEN_TOKENS, mode="timed")
    for text in ("br0", "iqr_lex"):
        policy = get(text) if text == "br0" else get(text, k=1e6)
        assert ranks_of(sparse, policy, mode="timed") == expected


def test_a_full_rank_with_a_queue_is_avoided_by_vllm():
    """Two requests a round: the second sees that the first waits on a rank whose cache is nearly full."""
    from equipoise.cost import StepCost, Term
    from equipoise.testing.policy_contract import ask
    from equipoise.testing.rounds import make_round

    case = make_round([[950], [3] * 3], [5, 5, 5, 5], StepCost("x", (Term("all"),)), kv_capacity_tokens=1000)
    policy = get("vllm_033")
    # 1 < 3 requests: rank 0; then 2 + 1 * 6 * 0.45 > 3: rank 1, until it holds as many
    assert ask(policy, case, case.memory(policy)).chosen == [0, 1, 1, 0]


@pytest.mark.parametrize("name", FIELD)
def test_better_than_chance(agentic, name):
    """Each evens out what it looks at: batches or tokens less uneven than those of random placement."""
    drawn, found = (ran(agentic, get(p)) for p in ("random", name))
    assert found.finished == len(agentic)
    assert found.excess < drawn.excess
    assert (
        min(
            found.max_over_mean_batch / drawn.max_over_mean_batch,
            found.max_over_mean_context / drawn.max_over_mean_context,
        )
        < 0.9
    )


@pytest.mark.parametrize("name", FIELD)
def test_tight_capacity_and_batches(agentic, name):
    """Slots are scarce all the time, and some requests fill half a rank: everything is served all the same."""
    run = ran(agentic, get(name), kv_capacity_tokens=1_200_000, max_batch=12)
    assert run.finished + run.rejected == len(agentic)
    assert run.finished > 0.9 * len(agentic)


@pytest.mark.parametrize("name", ["brh", "fast_phi", "bf_io", "trtllm_adp", "dynamo_kv"])
def test_policies_that_remember_work_in_groups_of_any_size(agentic, name):
    """Groups that differ by an instance; each has its own memory."""
    run = ran(agentic, get(name), ranks=3, instances=3, groups=2)
    assert run.finished == len(agentic)
