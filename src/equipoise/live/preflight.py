"""Before the first run: who is there, what it can take, and whether it does as it is told."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import aiohttp
import numpy as np

from equipoise.engines import Client, Observation
from equipoise.errors import EngineError, InputError
from equipoise.live.about import InstanceAbout
from equipoise.live.asks import body
from equipoise.live.plan import LivePlan
from equipoise.live.prompts import Prompts, Wording
from equipoise.live.rows import ANSWERED, Outcome
from equipoise.live.sender import Prepared, Sender
from equipoise.serve.targets import Node, Target, targets_of
from equipoise.traces.trace import Trace

__all__ = ["Found", "find", "fitting", "learn_wording", "try_pins"]

WAKE_S = 6.0
"""How long an engine that shows no loads may take until it does, once it has been sent a request."""
WORDING_WORDS = (40, 240)
"""Words of the two prompts that an engine's tokenizer is learnt from."""


@dataclass(frozen=True, slots=True)
class Found:
    """An engine that answered.

    Parameters
    ----------
    targets : tuple of Target
        With all their ranks.
    instances : tuple of InstanceAbout
    model : str
    version : str, optional
    longest_tokens : int
        Prompt and output together that it takes; 2^40: it does not say.
    notes : tuple of str
    """

    targets: tuple[Target, ...]
    instances: tuple[InstanceAbout, ...]
    model: str
    version: str | None
    longest_tokens: int
    notes: tuple[str, ...]


async def find(plan: LivePlan, client: Client, session: aiohttp.ClientSession) -> Found:
    """Ask every address of an engine for its ranks, its model and its limits.

    Raises
    ------
    EngineError
        It does not answer, has another number of ranks than was said, or serves another model.
    """
    targets = targets_of(
        plan.workers,
        plan.engine,
        plan.dp_size,
        kv_capacity_tokens=plan.kv_capacity_tokens,
        max_batch=plan.max_batch,
    )
    model, longest = await _model(plan, client, targets[0].url)
    notes: list[str] = []
    instances = []
    for target in targets:
        capacities, batches = set(), set()
        for node in target.nodes:
            url = node.engine.urls[0]
            seen = await _seen(plan, client, session, node, model)
            workers = {worker for one in seen for worker in one.workers}
            if node.engine.kind == "dynamo" and not node.engine.worker_id:
                if len(workers) != 1:
                    raise EngineError(
                        f"{url} has {len(workers)} workers: name each as an --url of its own, with worker_id= and "
                        "metrics_url=."
                    )
                node.engine = replace(node.engine, worker_id=workers.pop(), mode="header")
            loads = [load for one in seen for load in one.ranks]
            found = len({load.rank for load in loads if load.worker_id in ("", node.engine.worker_id)})
            if node.sized and found not in (0, node.engine.ranks):
                raise EngineError(
                    f"{url} shows {found} ranks, and {node.engine.ranks} were said to be there: give --dp-size "
                    f"{found}, or leave it out."
                )
            if not node.sized:
                if not found:
                    raise EngineError(f"{url} does not say how many ranks it has: give --dp-size.")
                target.size(node, found)
            target.renumber()
            notes += [f"{target.name}: {note}" for one in seen for note in one.notes]
            capacities |= {load.kv_capacity_tokens for load in loads}
            batches |= {load.max_batch for load in loads}
        instances.append(
            InstanceAbout(
                name=target.name,
                url=target.url,
                ranks=target.ranks,
                kv_capacity_tokens=plan.kv_capacity_tokens or _least(capacities),
                max_batch=plan.max_batch or _least(batches),
            )
        )
    for one in instances:
        if one.kv_capacity_tokens is not None:
            longest = min(longest, one.kv_capacity_tokens)
    return Found(
        tuple(targets),
        tuple(instances),
        model,
        await _version(client, targets[0].url),
        longest,
        tuple(dict.fromkeys(notes)),
    )


async def _seen(
    plan: LivePlan, client: Client, session: aiohttp.ClientSession, node: Node, model: str
) -> tuple[Observation, ...]:
    """One look at an address; an engine that has served nothing yet may show nothing, and is sent a small request."""
    end_s: float | None = None
    while True:
        try:
            return await client.observe(node.engine, node.adapter)
        except InputError as error:
            raise EngineError(str(error)) from error
        except EngineError:
            if end_s is None:
                end_s = time.monotonic() + WAKE_S
                await _wake(plan, session, node.engine.urls[0], model)
            if time.monotonic() > end_s:
                raise
            await asyncio.sleep(WAKE_S / 20)


async def _wake(plan: LivePlan, session: aiohttp.ClientSession, url: str, model: str) -> None:
    prompt = b'"the"' if plan.prompts == "text" else b"[%d]" % plan.token_ids[0]
    headers = {"Content-Type": "application/json"}
    if plan.worker_key:
        headers["Authorization"] = f"Bearer {plan.worker_key}"
    data = body(plan.route, model, prompt, 1, engine=plan.engine)
    try:
        async with session.post(
            url + plan.route, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=plan.timeout_s)
        ) as answer:
            await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return  # the next look says what is wrong


def _least(values: set[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None


async def _model(plan: LivePlan, client: Client, url: str) -> tuple[str, int]:
    """Name of the model, and the longest context it takes."""
    try:
        page = await client.get(url + "/v1/models")
        listed = json.loads(page)["data"]
        names = [str(one["id"]) for one in listed]
        limits = [one.get("max_model_len") for one in listed]
    except EngineError:
        if plan.model:
            return plan.model, 1 << 40
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if plan.model:
            return plan.model, 1 << 40
        raise EngineError(f"{url}/v1/models is no list of models: give --model.") from error
    if plan.model and plan.model not in names:
        raise EngineError(
            f"{url} serves {', '.join(names[:4]) or 'no model'}, not {plan.model!r}: give --model."
        )
    if not names:
        raise EngineError(f"{url}/v1/models names no model: give --model.")
    model = plan.model or names[0]
    limit = limits[names.index(model)]
    known = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
    return model, limit if known else 1 << 40


async def _version(client: Client, url: str) -> str | None:
    for path in ("/version", "/server_info"):
        try:
            document = json.loads(await client.get(url + path))
        except (EngineError, ValueError, RecursionError):
            continue
        version = document.get("version") if isinstance(document, dict) else None
        if isinstance(version, str):
            return version[:80]
    return None


def fitting(plan: LivePlan, longest_tokens: int) -> tuple[Trace, str]:
    """The trace without the requests that the engine cannot take, and a sentence on them; empty: it takes all.

    Raises
    ------
    InputError
        There are such requests, and the plan is to stop; or there are no others.
    """
    trace = plan.trace
    total = trace.context_tokens + trace.output_tokens
    good = total <= longest_tokens
    bad = int((~good).sum())
    if not bad:
        return trace, ""
    share = (
        f"{bad:,} of {len(trace):,} requests are longer than the {longest_tokens:,} tokens the engine takes"
    )
    longest = f"the longest has {int(total.max()):,}"
    if plan.on_failure == "stop" or bad == len(trace):
        fix = f"use --prompt-scale {math.floor(longest_tokens / int(total.max()) * 1000) / 1000:g}"
        if bad < len(trace):
            fix += ", or --on-failure degrade to leave them out"
        raise InputError(f"{share} ({longest})", where=f"trace {trace.name!r}", fix=fix)
    return take(trace, good), f"{share} ({longest}), and were left out."


def take(trace: Trace, good: np.ndarray) -> Trace:
    """Some rows of a trace, their prefix blocks with them."""
    from equipoise.traces.reorder import reorder

    return reorder(trace, np.flatnonzero(good))


async def try_pins(
    plan: LivePlan, found: Found, sender: Sender, prompts: Prompts, salt: int, requests_a_rank: int
) -> str:
    """Send a few small requests to every rank: the engine takes the pins, and is warm; what is wrong, in words.

    Raises
    ------
    EngineError
        Nobody answers.
    """
    tokens = int(np.median(plan.trace.context_tokens))
    output = min(int(np.median(plan.trace.output_tokens)), 16)
    number = 0
    for target in found.targets:
        for rank in range(target.ranks):
            for i in range(max(requests_a_rank, 1)):
                length = tokens if i else min(tokens, 16)
                what = Prepared(-1, prompts.plain(length, salt, number), length, output)
                number += 1
                row = await sender.send(what, time.monotonic() - sender.start_s, (target, rank))
                if row.outcome in ANSWERED:
                    continue
                words = f"rank {rank} of {target.name}: {row.message or row.outcome}"
                if row.outcome in (Outcome.PIN_REFUSED, Outcome.REFUSED):
                    return f"the engine refuses the pin to {words}"
                raise EngineError(f"a small request failed on {words}.")
    return ""


async def learn_wording(plan: LivePlan, found: Found, sender: Sender, prompts: Prompts) -> Wording:
    """How many tokens the engine makes of words; `prompts` must make words, with the plain `Wording`.

    Raises
    ------
    EngineError
        It does not say how long prompts are, or makes no whole number of tokens of each word.
    """
    counts = []
    for i, words in enumerate(WORDING_WORDS):
        what = Prepared(-1, prompts.plain(words, 0, i), words, 1)
        row = await sender.send(what, time.monotonic() - sender.start_s, (found.targets[0], 0))
        if row.outcome not in ANSWERED or row.prompt_tokens is None:
            raise EngineError(
                f"the engine does not say how many tokens a prompt has ({row.message or row.outcome}): "
                "use --prompts ids."
            )
        counts.append(row.prompt_tokens)
    rate = (counts[1] - counts[0]) / (WORDING_WORDS[1] - WORDING_WORDS[0])
    if rate < 0.5:
        raise EngineError(f"{counts[0]} and {counts[1]} tokens of 40 and 240 words: use --prompts ids.")
    return Wording(counts[0] - rate * WORDING_WORDS[0], rate)


def ranks_of(targets: Sequence[Target]) -> int:
    """Ranks of all instances together."""
    return sum(target.ranks for target in targets)
