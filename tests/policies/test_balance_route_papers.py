"""``br0``, ``brh``, ``bf_io`` and ``fast_phi`` against the papers, on pools whose every request and age is known."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_pools import COST, Life, Pool

from equipoise.policies import get
from equipoise.policies.running import running_of
from equipoise.policies.survival import (
    CELLS,
    SEEN,
    SIZE,
    WINDOW,
    learn,
    lengths_known,
    renew,
    survivors,
    time_left,
)
from equipoise.testing.policy_contract import ask
from equipoise.testing.rounds import make_round, rounds
from equipoise.testing.strategies import generators


class Outlook:
    """The papers' loads and their score, in rational numbers."""

    def __init__(self, load, decay, penalty):
        self.load, self.decay, self.penalty = load, decay, penalty

    def worth(self, r, tokens):
        total = Fraction(0)
        for h, row in enumerate(zip(*self.load, strict=True)):
            margin = max(0, *row) - self.load[r][h]
            total += self.decay**h * (tokens - self.penalty * max(0, tokens - margin))
        return total

    def margin(self, r):
        return min(max(0, *row) - self.load[r][h] for h, row in enumerate(zip(*self.load, strict=True)))

    def put(self, pool, i, r):
        pool.put(i, r)
        self.load[r] = [x + pool.lengths[i] for x in self.load[r]]


def first_stage(pool, outlook):
    """Single requests for the rank with the most free slots, while the pool has more than seven."""
    shut = set()
    while sum(pool.slots[r] for r in pool.ranks if pool.free[r] >= 0) > 7:
        open_ranks = [r for r in pool.ranks if pool.slots[r] > 0 and pool.free[r] >= 0 and r not in shut]
        if not open_ranks:
            break
        rank = min(open_ranks, key=lambda r: (-pool.slots[r], pool.tokens[r]))
        here = [i for i in pool.requests if pool.chosen[i] == -1 and rank in pool.fitting(i)]
        if here:
            outlook.put(pool, max(here, key=lambda i: outlook.worth(rank, pool.lengths[i])), rank)
        else:
            shut.add(rank)
    return shut


def balance_route(pool, outlook):
    """BalanceRoute: then sets of the oldest four for the lightest rank."""
    shut = first_stage(pool, outlook)
    while True:
        window = [i for i in pool.requests if pool.chosen[i] == -1][:4]
        open_ranks = [r for r in pool.ranks if pool.slots[r] > 0 and pool.free[r] >= 0 and r not in shut]
        if not window or not open_ranks:
            return pool.chosen
        rank = min(open_ranks, key=lambda r: outlook.load[r][0])
        sets = [
            s
            for n in range(1, min(len(window), pool.slots[rank]) + 1)
            for s in combinations(window, n)
            if sum(pool.takes[i] for i in s) <= pool.free[rank]
        ]
        # of equals the one that comes first as a binary number, the oldest request its last digit
        sets.sort(key=lambda s: sum(2 ** window.index(i) for i in s))
        value = {s: outlook.worth(rank, sum(pool.lengths[i] for i in s)) for s in sets}
        if not sets:
            shut.add(rank)
            continue
        best = max(sets, key=lambda s: value[s])
        if value[best] <= 0:
            best = max((s for s in sets if len(s) == 1), key=lambda s: value[s])
        for i in best:
            outlook.put(pool, i, rank)


def released_bf_io(pool, outlook):
    """The released heuristic: per size the largest sum within the margin or else the smallest above."""
    shut = first_stage(pool, outlook)
    while True:
        open_ranks = [r for r in pool.ranks if pool.slots[r] > 0 and pool.free[r] >= 0 and r not in shut]
        if not open_ranks:
            return pool.chosen
        rank = min(open_ranks, key=lambda r: outlook.load[r][-1])
        here = [i for i in pool.requests if pool.chosen[i] == -1 and rank in pool.fitting(i)]
        if not here:
            shut.add(rank)
            continue
        margin, best = outlook.margin(rank), None
        for size in range(min(len(here), pool.slots[rank], 7), 0, -1):
            sets = [
                s
                for s in combinations(here[:10] if size > 1 else here, size)
                if sum(pool.takes[i] for i in s) <= pool.free[rank]
            ]
            sums = {s: sum(pool.lengths[i] for i in s) for s in sets}
            within = [t for t in sums.values() if t <= margin]
            if not sets:
                continue
            target = max(within) if within else min(sums.values())
            value = outlook.worth(rank, target)
            if best is None or value > best[0]:
                best = value, target, size
                if value > 0 and within:
                    break
        if best[0] > 0:
            return_to = best[1:]
        else:
            return_to = pool.lengths[max(here, key=lambda i: outlook.worth(rank, pool.lengths[i]))], 1
        yield rank, *return_to


def now(case):
    return [[c] for c in case.ranks.context_tokens.tolist()]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rounds(max_ranks=5, max_requests=12), st.integers(0, 9))
def test_br0_takes_the_papers_steps(case, penalty):
    policy = get("br0", penalty=penalty)
    found = ask(policy, case, case.memory(policy), compiled=True).chosen
    pool = Pool(case)
    assert found == balance_route(pool, Outlook(now(case), Fraction(1), penalty or len(pool.batch)))


def test_br0_weighs_overflow_by_the_number_of_ranks():
    """With 30 tokens lacking, 40 are worth 40 - 2 * 10 on two ranks and 40 - 8 * 10 on eight; 15 are worth 15."""
    two = make_round([[50], [20]], [15, 40], COST, max_batch=9)
    assert ask(get("br0"), two, two.memory(get("br0"))).chosen[1] == 1
    eight = make_round([[50]] * 7 + [[20]], [15, 40], COST)
    chosen = ask(get("br0"), eight, eight.memory(get("br0"))).chosen
    assert chosen[0] == 7
    assert chosen[1] != 7


def lives(draw_policy):
    return st.tuples(
        st.integers(1, 4), draw_policy, st.sampled_from([None, 3, 6]), generators(), st.integers(5, 25)
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lives(st.tuples(st.integers(0, 6), st.sampled_from([0, 3]))))
def test_brh_takes_the_papers_steps(life):
    ranks, (horizon, penalty), max_batch, rng, steps = life
    pool_of = Life(ranks, get("brh", horizon=horizon, gamma=0.5, penalty=penalty), max_batch)
    for _ in range(steps):
        if rng.random() < 0.8:  # now and then two rounds come in one event
            pool_of.step()
        n = int(rng.integers(1, 6))
        loads = pool_of.predicted_loads(horizon, 1)
        case, chosen = pool_of.place(rng.integers(1, 60, n).tolist(), rng.integers(1, 12, n).tolist())
        pool = Pool(case)
        assert chosen == balance_route(pool, Outlook(loads, Fraction(1, 2), penalty or ranks))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lives(st.integers(0, 6)))
def test_bf_io_takes_the_released_steps(life):
    ranks, horizon, max_batch, rng, steps = life
    pool_of = Life(ranks, get("bf_io", horizon=horizon, decay=0.5), max_batch)
    for _ in range(steps):
        if rng.random() < 0.8:  # now and then two rounds come in one event
            pool_of.step()
        n = int(rng.integers(1, 9))
        outlook = Outlook(pool_of.predicted_loads(horizon, 0), Fraction(1, 2), 43)
        case, chosen = pool_of.place(rng.integers(1, 60, n).tolist(), rng.integers(1, 12, n).tolist())
        pool = Pool(case)
        for rank, total, size in released_bf_io(pool, outlook):
            # which of several sets with the preferred sum and size is placed is free: take the policy's
            mine = [i for i in pool.requests if pool.chosen[i] == -1 and chosen[i] == rank]
            sets = [s for s in combinations(mine, size) if sum(pool.lengths[i] for i in s) == total]
            assert sets, f"no {size} requests of {total} tokens went to rank {rank}"
            for i in sets[0]:
                outlook.put(pool, i, rank)
        assert chosen == pool.chosen


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lives(st.integers(1, 6)))
def test_fast_phi_has_the_least_expected_overflow(life):
    """By the integral's five points, with the true ages; the fewest tokens where costs are equal."""
    ranks, points, max_batch, rng, steps = life
    pool_of = Life(ranks, get("fast_phi", points=points), max_batch)
    for _ in range(steps):
        if rng.random() < 0.8:  # now and then two rounds come in one event
            pool_of.step()
        pool_of.renew()
        lengths = sorted(pool_of.known)
        at = [0] + [lengths[k * len(lengths) // points] for k in range(1, points)] if lengths else [0]
        weight = [Fraction(1)] if len(at) == 1 else [Fraction(0)] * len(at)
        for k in range(len(at) - 1):
            for j in (k, k + 1):
                weight[j] += Fraction(at[k + 1] - at[k], 2)

        def share(age, h, lengths=lengths):
            longer = sum(x > age for x in lengths)
            return Fraction(sum(x > age + h for x in lengths), longer) if longer else Fraction(1)

        load = [
            [sum(share(a, h) * (c + a + h) for _, c, a, _ in here) for h in at] for here in pool_of.running
        ]
        n = int(rng.integers(1, 5))
        case, chosen = pool_of.place(rng.integers(1, 60, n).tolist(), rng.integers(1, 12, n).tolist())
        pool = Pool(case)
        for i, rank in enumerate(chosen):
            fitting = pool.fitting(i)
            if not fitting:
                assert set(chosen[i:]) == {-1}
                break
            s = pool.lengths[i]
            cost = [
                sum(
                    w * share(0, h) * max(0, s + h - (max(0, *(row[k] for row in load)) - load[r][k]))
                    for k, (h, w) in enumerate(zip(at, weight, strict=True))
                )
                for r in pool.ranks
            ]
            assert cost[rank] <= min(cost[r] for r in fitting) + Fraction(1, 10**6)
            if cost[rank] == 0:
                assert pool.tokens[rank] == min(pool.tokens[r] for r in fitting if cost[r] == 0)
            load[rank] = [x + share(0, h) * (s + h) for x, h in zip(load[rank], at, strict=True)]
            pool.put(i, rank)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 3000), max_size=40), st.integers(0, 400))
def test_tables_of_survival(outputs, horizon):
    """Per cell of ages what the definition says, ages rounded down to a cell; nothing known, nothing ends."""
    history, left, alive = np.zeros(SIZE, np.int64), np.empty(CELLS), np.empty(CELLS)
    for output in outputs:
        learn(history, output)
    assert renew(history) == (outputs != [])
    lengths = lengths_known(history)
    assert lengths.tolist() == sorted(outputs)
    time_left(lengths, horizon, left)
    survivors(lengths, horizon, alive)
    width = max(outputs, default=0) // (CELLS - 1) + 1
    for cell in range(0, CELLS, 37):
        age = cell * width
        longer = [x for x in outputs if x > age]
        if not longer:
            assert (left[cell], alive[cell]) == (horizon, 1.0)
            continue
        assert left[cell] == pytest.approx(np.mean([min(x - age, horizon) for x in longer]))
        assert alive[cell] == pytest.approx(np.mean([x > age + horizon for x in longer]))


def test_only_the_last_lengths_count():
    history = np.zeros(SIZE, np.int64)
    for output in range(1, WINDOW + 11):
        learn(history, output)
    assert renew(history)
    assert lengths_known(history).tolist() == list(range(11, WINDOW + 11))
    assert history[SEEN] == WINDOW + 10


def test_lengths_are_renewed_when_a_32nd_more_have_ended():
    history, renewals = np.zeros(SIZE, np.int64), []
    for n in range(1, 101):
        learn(history, n)
        if renew(history):
            renewals.append(n)
            assert lengths_known(history).tolist() == list(range(1, n + 1))
        assert history[SEEN] == n
    assert renewals == [*range(1, 33), *range(34, 65, 2), *range(67, 98, 3)]


def test_the_table_forgets_aborted_requests():
    """A rank that shows fewer requests than the table knows has lost the oldest; its clock goes on."""
    pool = Life(1, get("brh"), None)
    pool.place([10], [50])
    pool.step()
    pool.place([20], [50])
    for _ in range(4):
        pool.step()
    assert pool.running == [[(0, 10, 5, 50), (1, 20, 4, 50)]]
    pool.running = [[(1, 20, 4, 50)]]
    pool.place([30], [50])
    table = running_of(pool.memory.ints)
    known = sorted(zip(table.request[0, :2].tolist(), table.context[0, :2].tolist(), strict=True))
    assert (table.entries[0], known) == (2, [(1, 20), (2, 30)])
    ages = table.clock[0] - table.start[0, :2]
    assert sorted(ages.tolist()) == [0, 4]


def test_a_rank_with_strangers_has_no_ages():
    """Requests that another router placed: nothing is foreseen, nothing breaks, and ages begin when they have left."""
    pool = Life(2, get("brh", horizon=4), None)
    pool.running[0].append((99, 500, 7, 40))  # not placed by the policy
    for _ in range(6):
        pool.step()
        pool.place([10, 10], [3, 3])
    assert running_of(pool.memory.ints).clock[1] > 0
    assert running_of(pool.memory.ints).clock[0] == 0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(rounds(max_requests=12))
def test_brh_without_a_horizon_is_br0(case):
    br0, brh = get("br0"), get("brh", horizon=0)
    assert ask(br0, case, case.memory(br0)).chosen == ask(brh, case, case.memory(brh)).chosen


def test_brh_prefers_the_rank_that_is_about_to_empty():
    """Equal batches and loads; the request on rank 0 is eight steps old, and all answers end after ten."""
    policy = get("brh", horizon=8, gamma=1.0)
    pool = Life(2, policy, None)
    pool.place([100], [10])
    for _ in range(8):
        pool.step()
    pool.place([108], [10])
    for output in [10] * 20:  # all answers are ten tokens long
        policy.spec.finished(pool.memory, policy.param_array(), -1, 0, 1, output)
    first, second = pool.running
    assert (len(first), len(second)) == (1, 1)
    assert sum(c + a for _, c, a, _ in first) == sum(c + a for _, c, a, _ in second)
    assert pool.place([50], [10])[1] == [0]
