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

TOKENS = 48
"""Each request of a stage generates so many: as many steps, nearly, at that load."""
LARGEST_BATCH = 64
"""Of a rank, unless the plan goes beyond it."""
SHORTEST_PROMPT = 16
"""Tokens of the prompts under which a batch costs nearly nothing but its requests."""
PROMPT_TOKENS = 400_000
"""All prompts of a stage and instance together stay below: a probe is not to prefill for minutes."""
PROBE = "probe"
"""Policy of its rows."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs at once on each rank of an instance.

    Parameters
    ----------
    loads : tuple of (int, int)
        Requests and prompt tokens of each, by rank.
    """

    loads: tuple[tuple[int, int], ...]


def stages(plan: LivePlan, instance: InstanceAbout, longest_tokens: int) -> list[Stage]:
    """Loads that tell the price of a request from that of a context token, and a sum from a maximum.

    Batches go up to what the plan will reach; prompts are very short ones, and the 50th and 90th percentile of the
    trace. Every pair of them once with the same load on all ranks, then a few with one rank heavier than the others.
    """
    ranks = instance.ranks
    top = LARGEST_BATCH
    if plan.concurrency is not None:
        top = max(-(-3 * plan.concurrency // (2 * ranks * len(plan.workers))), 4)
    top = min(top, instance.max_batch or top)
    most = min(longest_tokens, instance.kv_capacity_tokens or longest_tokens) - TOKENS - 1
    middle, long = np.quantile(plan.trace.context_tokens, [0.5, 0.9], method="nearest").tolist()
    # A factor of 16 at least: with contexts alike a token's price could not be told from a request's.
    prompts = sorted(
        {max(min(int(n), most), 1) for n in (SHORTEST_PROMPT, middle, max(long, 16 * SHORTEST_PROMPT))}
    )
    batches = sorted({1, max(top // 4, 1), top})

    def fits(batch: int, prompt: int, width: int) -> int:
        capacity = instance.kv_capacity_tokens or 1 << 40
        room = min(PROMPT_TOKENS // (prompt * width), capacity * 9 // 10 // (prompt + TOKENS))
        return max(min(batch, room), 1)

    found = [Stage(((fits(b, p, ranks), p),) * ranks) for b in batches for p in prompts]
    if ranks > 1:
        light = (1, prompts[0])
        heavy = [(top, prompts[0]), (max(top // 2, 1), prompts[-1]), (top, prompts[-1])]
        found += [Stage(((fits(b, p, 1), p), *((light,) * (ranks - 1)))) for b, p in heavy]
        # The longest batch on one rank and the longest context on another: what a sum of maxima pays twice.
        found.append(
            Stage(
                (
                    (top, prompts[0]),
                    (fits(max(top // 4, 1), prompts[-1], 1), prompts[-1]),
                    *((light,) * (ranks - 2)),
                )
            )
        )
    return list(dict.fromkeys(found))


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
