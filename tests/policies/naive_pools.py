"""Pools in plain Python, for tests that write a rule down again: one round of placement, and a life of many steps."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from equipoise.cost import StepCost, Term
from equipoise.policies.survival import WINDOW
from equipoise.testing.policy_contract import ask
from equipoise.testing.rounds import make_round

COST = StepCost("requests", (Term("all"),))


class Pool:
    """A view as plain lists, with the capacity filter and the booking of a placed request."""

    def __init__(self, case):
        self.batch, self.tokens = case.ranks.batch.tolist(), case.ranks.context_tokens.tolist()
        self.free, self.slots = case.ranks.free_tokens.tolist(), case.ranks.free_slots.tolist()
        self.lengths, self.takes = (
            case.requests.context_tokens.tolist(),
            case.requests.reserve_tokens.tolist(),
        )
        self.ranks, self.requests = range(len(self.batch)), range(len(self.lengths))
        self.chosen = [-1] * len(self.lengths)

    def fitting(self, i):
        return [r for r in self.ranks if self.slots[r] > 0 and self.free[r] >= self.takes[i]]

    def put(self, i, r):
        assert r in self.fitting(i)
        self.chosen[i] = r
        self.batch[r] += 1
        self.slots[r] -= 1
        self.tokens[r] += self.lengths[i]
        self.free[r] -= self.takes[i]

    def fetched(self):
        """The oldest requests that slots and memory of all ranks together allow."""
        open_ranks = [r for r in self.ranks if self.slots[r] > 0 and self.free[r] >= 0]
        most, count = sum(self.slots[r] for r in open_ranks), 0
        while (
            count < min(most, len(self.takes))
            and sum(self.takes[: count + 1]) <= sum(self.free[r] for r in open_ranks)
            and self.fitting(count)
        ):
            count += 1
        return count

    def oldest_first(self, choose):
        for i in self.requests:
            fitting = self.fitting(i)
            if not fitting:
                break
            self.put(i, choose(i, fitting))
        return self.chosen


class Life:
    """A pool that runs in plain Python and tells a policy what it may know."""

    def __init__(self, ranks, policy, max_batch):
        self.policy, self.max_batch, self.number = policy, max_batch, 0
        self.running = [[] for _ in range(ranks)]  # (number, context, age, output)
        self.ended, self.told, self.known, self.renewed = [], 0, [], 0
        self.memory = make_round([[]] * ranks, [1], COST).memory(policy)

    def step(self):
        """Every request gets a token; those that are through leave."""
        for r, here in enumerate(self.running):
            aged = [(q, c, a + 1, o) for q, c, a, o in here]
            self.running[r] = [x for x in aged if x[2] < x[3]]
            for q, c, _, o in [x for x in aged if x[2] == x[3]]:
                self.policy.spec.finished(self.memory, self.policy.param_array(), q, r, c, o)
                self.ended = [*self.ended, o][-WINDOW:]
                self.told += 1

    def renew(self):
        """What is known of lengths when a round comes: renewed when a 32nd more have ended."""
        if self.told - self.renewed >= 1 + min(self.renewed, WINDOW) // 32:
            self.known, self.renewed = list(self.ended), self.told

    def offer(self, contexts):
        case = make_round(
            [[c + a for _, c, a, _ in here] for here in self.running],
            contexts,
            COST,
            max_batch=self.max_batch,
        )
        case.requests.request[:] = np.arange(self.number, self.number + len(contexts))
        return case

    def place(self, contexts, outputs):
        case = self.offer(contexts)
        answer = ask(self.policy, case, self.memory, compiled=True)
        self.memory = answer.memory
        for i, r in enumerate(answer.chosen):
            if r >= 0:
                self.running[r].append((self.number + i, contexts[i], 0, outputs[i]))
        self.number += len(contexts)
        return case, answer.chosen

    def predicted_loads(self, horizon, growth):
        """Each request stays until c = (1 - p) H + p m after now, those expected to outlive H stay."""
        self.renew()
        rows = []
        for here in self.running:
            row = [0] * (horizon + 1)
            for _, context, age, _ in here:
                longer = [x for x in self.known if x > age]
                ending = [x - age for x in longer if x <= age + horizon]
                left = (
                    Fraction((len(longer) - len(ending)) * horizon + sum(ending), len(longer))
                    if longer
                    else Fraction(horizon)
                )
                for h in range(horizon + 1):
                    if h < left or math.ceil(left) >= horizon:
                        row[h] += context + age + growth * h
            rows.append(row)
        return rows
