"""The contract with a real Dynamo: pins are honoured, loads are read, ranks are in lock-step.

Skipped unless EQUIPOISE_DYNAMO_VENV names an environment that scripts/install-dynamo-mocker made.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dynamo_processes import cost_table, dynamo, environment

from equipoise.engines import EngineInstance, TokenCounter, get, rank_reports
from equipoise.engines.dynamo import read_frontend, read_workers
from equipoise.errors import EngineError

aiohttp = pytest.importorskip("aiohttp", reason="pip install 'equipoise[serve]'")

from equipoise.engines import Client  # noqa: E402

pytestmark = pytest.mark.proof

RANKS = 4
Test = Callable[["aiohttp.ClientSession", EngineInstance], Awaitable[None]]


def served(folder: Path, test: Test, *options: str) -> None:
    async def run() -> None:
        async with (
            aiohttp.ClientSession() as session,
            dynamo(folder, RANKS, session, *options) as (api, system),
        ):
            health = read_workers(await Client(session).get(api + "/health"))
            (worker,) = health
            target = EngineInstance(
                "d", "dynamo", (api,), ranks=RANKS, worker_id=worker, metrics_urls=(system,)
            )
            await test(session, target)

    environment()
    asyncio.run(run())


def body(tokens: int, prompt: int = 6, seed: int = 0, **more: Any) -> dict[str, Any]:
    asks = {"nvext": {"extra_fields": ["worker_id"]}, "ignore_eos": True, "stream": True}
    ids = [5 + (i * (2 * seed + 1) + seed) % 900 for i in range(prompt)]  # another seed: no shared prefix
    return {"model": "tiny", "prompt": ids, "max_tokens": tokens, **asks, **more}


async def ask(
    session: Any, target: EngineInstance, rank: int, document: dict[str, Any]
) -> tuple[bytes, list[float]]:
    """The stream, and when its chunks came."""
    pin = get("dynamo").pin(target, rank, "/v1/completions")
    data, times = b"", []
    async with session.post(
        pin.url + "/v1/completions", json=document, headers=dict(pin.headers)
    ) as response:
        assert response.status == 200, await response.text()
        async for chunk in response.content.iter_any():
            data += chunk
            times.append(time.monotonic())
    return data, times


def ranks_of(stream: bytes) -> set[int]:
    events = [json.loads(e[6:]) for e in stream.split(b"\n\n") if e.startswith(b"data: {")]
    told = [e["nvext"]["worker_id"]["decode_dp_rank"] for e in events if e.get("nvext")]
    assert told
    return set(told)


def test_pins_loads_and_counts(tmp_path: Path) -> None:
    async def test(session: Any, target: EngineInstance) -> None:
        for rank in range(RANKS):
            for usage in (False, True):
                document = body(7, stream_options={"include_usage": usage})
                stream, _ = await ask(session, target, rank, document)
                assert ranks_of(stream) == {rank}
                counter = TokenCounter()
                counter.feed(stream)
                counter.end()
                assert (counter.tokens, counter.exact, counter.done) == (7, usage, True)
                assert counter.prompt_tokens == (6 if usage else -1)
        # a client's own choice is stripped before ours is set; what is left when it is not:
        for headers, status in (
            ({"x-dynamo-worker-instance-id": target.worker_id, "x-dynamo-dp-rank": "9"}, 500),
            ({"x-dynamo-worker-instance-id": "17", "x-dynamo-dp-rank": "1"}, 400),
            ({"x-dynamo-dp-rank": "9"}, 200),
        ):
            async with session.post(
                target.urls[0] + "/v1/completions", json=body(2), headers=headers
            ) as response:
                assert response.status == status, headers
        jobs = [asyncio.create_task(ask(session, target, 3, body(400, 640, seed))) for seed in range(5)]
        client = Client(session)
        for _ in range(300):
            seen = await client.observe(target)
            reports = rank_reports(target, 0, seen, 0.0)
            if reports[3].running == 5:
                break
            await asyncio.sleep(0.02)
        assert [r.running for r in reports] == [0, 0, 0, 5]
        assert reports[3].kv_capacity_tokens == 16384 * 64
        assert reports[3].max_batch == 64
        assert reports[3].context_tokens is not None
        assert 5 * 640 <= reports[3].context_tokens <= 5 * 1100
        assert seen[0].notes == ()
        assert {
            load.rank for load in read_frontend(await client.get(target.urls[0] + "/metrics")).ranks
        } <= set(range(4))
        await asyncio.gather(*jobs)
        with pytest.raises(EngineError, match="answered 404"):
            await client.get(target.urls[0] + "/no-such-page")

    served(tmp_path, test)


def test_ranks_are_in_lock_step(tmp_path: Path) -> None:
    """A short request beside a loaded rank gets slower; orderings only, and of medians."""

    async def test(session: Any, target: EngineInstance) -> None:
        async def pace(rank: int) -> float:
            _, times = await ask(session, target, rank, body(60))
            return statistics.median(b - a for a, b in pairwise(times[5:]))

        alone = await pace(1)
        heavy = [asyncio.create_task(ask(session, target, 0, body(400, 3000, i))) for i in range(48)]
        client = Client(session)
        for _ in range(300):
            (seen,) = await client.observe(target)
            if seen.ranks[0].running == 48:
                break
            await asyncio.sleep(0.05)
        assert [load.running for load in seen.ranks] == [48, 0, 0, 0]
        beside = await pace(1)
        for job in heavy:
            job.cancel()
        await asyncio.gather(*heavy, return_exceptions=True)
        assert beside > 1.3 * alone

    environment()
    served(tmp_path, test, "--planner-profile-data", str(cost_table(tmp_path)))
