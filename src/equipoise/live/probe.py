"""Steps under known loads: batches and contexts varied apart from each other, even and uneven between ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.live.about import InstanceAbout
from equipoise.live.plan import LivePlan
from equipoise.live.prompts import Prompts
from equipoise.live.sender import Prepared, Sender
from equipoise.serve.targets import Target

__all__ = ["Stage", "run_probe", "stages"]

TOKENS = 32
"""Each request of a stage generates so many: as many steps, nearly, at that load."""
LARGEST_BATCH = 64
"""Of a rank, unless the plan goes beyond it."""
SHORTEST_PROMPT = 16
"""Tokens of the prompts under which a batch costs nearly nothing but its requests."""
PROMPT_TOKENS = 400_000
"""All prompts of a stage and instance together stay below: a probe is not to prefill for minutes."""
TWICE_TOKENS = 20_000
"""Stages of fewer prompt tokens are run twice."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs at once on each rank of an instance.

    Parameters
    ----------
    loads : tuple of (int, int)
        Requests and prompt tokens of each, by rank.
    """

    loads: tuple[tuple[int, int], ...]

    @property
    def prompt_tokens(self) -> int:
        """Of all its requests."""
        return sum(batch * tokens for batch, tokens in self.loads)


def stages(plan: LivePlan, instance: InstanceAbout, longest_tokens: int) -> list[Stage]:
    """Loads that tell the price of a request from that of a context token, and a sum from a maximum.

    Batches go up to what the plan will reach. The price of a request is in many batches of prompts so short that their
    contexts cost nearly nothing; the price of a token is in few requests with prompts up to the longest of the trace;
    both together, and one rank heavier than the others, show whether prices add up, and over which ranks. The order is
    mixed, and what is quick is run a second time the other way round, so that a machine that gets slower is not taken
    for a load that costs more.
    """
    ranks = instance.ranks
    top = LARGEST_BATCH
    if plan.concurrency is not None:
        top = max(-(-3 * plan.concurrency // (2 * ranks * len(plan.workers))), 4)
    top = min(top, instance.max_batch or top)
    most = max(min(longest_tokens, instance.kv_capacity_tokens or longest_tokens) - TOKENS - 1, 1)
    lengths = plan.trace.context_tokens
    middle, long, longest = np.quantile(lengths, [0.5, 0.9, 1.0], method="nearest").tolist()
    # A factor of 16 at least: with contexts alike a token's price could not be told from a request's.
    long, longest = (max(n, 16 * SHORTEST_PROMPT) for n in (long, longest))
    short, *others = sorted({min(int(n), most) for n in (SHORTEST_PROMPT, middle, long, longest)})
    batches = sorted({max(top * eighths // 8, 1) for eighths in (1, 2, 4, 6, 8)})

    def fits(batch: int, prompt: int, width: int) -> int:
        capacity = instance.kv_capacity_tokens or 1 << 40
        room = min(PROMPT_TOKENS // (prompt * width), capacity * 9 // 10 // (prompt + TOKENS))
        return max(min(batch, room), 1)

    found = [Stage(((b, short),) * ranks) for b in (1, *batches)]
    for prompt in others:
        few = (1, max(top // 8, 2), max(top // 4, 1))
        found += [Stage(((fits(b, prompt, ranks), prompt),) * ranks) for b in few]
    corner = others[min(1, len(others) - 1)] if others else short
    found.append(Stage(((fits(top, corner, ranks), corner),) * ranks))
    if ranks > 1:
        light = (1, short)
        heavy = [(top, short), (max(top // 2, 1), corner), (fits(top, corner, 1), corner)]
        found += [Stage(((fits(b, p, 1), p), *((light,) * (ranks - 1)))) for b, p in heavy]
        # The longest batch on one rank and the longest context on another: what a sum of maxima pays twice.
        longest_context = (fits(max(top // 4, 1), corner, 1), corner)
        found.append(Stage(((top, short), longest_context, *((light,) * (ranks - 2)))))
    found = list(dict.fromkeys(found))
    mixed = [found[i] for i in np.random.default_rng(0).permutation(len(found))]
    return mixed + [one for one in reversed(mixed) if one.prompt_tokens < TWICE_TOKENS]


async def run_probe(
    sender: Sender,
    targets: Sequence[Target],
    plans: Sequence[Sequence[Stage]],
    prompts: Prompts,
    salt: int,
) -> None:
    """Run the stages, one after the other; instances side by side, for they do not wait for each other.

    Parameters
    ----------
    sender : Sender
        Its rows are what is measured.
    targets : sequence of Target
    plans : sequence of stages
        One list an instance.
    prompts : Prompts
    salt : int
    """
    number = 0
    most = max(len(one) for one in plans)
    for i in range(most):
        jobs = []
        for target, own in zip(targets, plans, strict=True):
            if i >= len(own):
                continue
            for rank, (batch, tokens) in enumerate(own[i].loads):
                for _ in range(batch):
                    what = Prepared(-1 - number, prompts.plain(tokens, salt, number), tokens, TOKENS)
                    number += 1
                    jobs.append((what, (target, rank)))
        due_s = time.monotonic() - sender.start_s
        async with asyncio.TaskGroup() as group:
            for what, place in jobs:
                group.create_task(sender.send(what, due_s, place))
