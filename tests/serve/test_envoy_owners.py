"""Two pickers as processes before one real Envoy, each the owner of some engines; one is killed under load."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("envoy.service.ext_proc.v3.external_processor_pb2")

from envoy_rig import envoy, envoy_path  # noqa: E402
from replica_cases import RedisServer  # noqa: E402
from replica_processes import routers  # noqa: E402
from serve_cases import asked, mock  # noqa: E402

pytestmark = pytest.mark.proof

CONFIG = """
workers = [{workers}]
[replicas]
redis = "{redis}"
ttl_s = 1.5
rebuild_s = 1.0
call_s = 0.7
gone_s = 2.5
hold_s = 8.0
[polling]
period_s = 0.1
"""
STREAMS, TOKENS = 24, 240
HARMLESS = {200, 503}


@pytest.fixture
def redis(tmp_path):
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


def test_every_request_lands_where_its_owner_says_and_a_killed_owner_cuts_none(redis, tmp_path):
    envoy_path()
    asyncio.run(asyncio.wait_for(owners_before_envoy(redis, tmp_path), 240.0))


async def owners_before_envoy(redis, tmp_path):
    engines = [mock(ranks=4, speed_up=0.5) for _ in range(4)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        path = tmp_path / "pool.toml"
        urls = [engine.url for engine in engines]
        path.write_text(CONFIG.format(workers=", ".join(f'"{url}"' for url in urls), redis=redis.url))
        arguments = ["--mode", "ext-proc", "--config", str(path), "--picker", "127.0.0.1:0"]
        own = [["--share", f"{k + 1}/2"] for k in range(2)]
        group = await stack.enter_async_context(routers(2, arguments, len(engines), own))
        front = await stack.enter_async_context(envoy(tmp_path, [r.picker for r in group.all], urls))

        async def ask(**body):
            async with group.client.post(front + "/v1/completions", json=asked(**body)) as answer:
                return answer.status, await answer.read()

        def running():
            places = Counter()
            for engine in engines:
                for rank, jobs in enumerate(engine.core.running):
                    places[engine.url, rank] += len(jobs)
            return +places

        async def as_owners_say():
            """What runs on every rank is in the ledger of its owner, and in nobody else's."""
            held = Counter()
            for one in group.alive:
                mine = await group.owns(one)
                rows = await group.ledger(one)
                if not {row["instance"] for row in rows} <= mine:
                    return False
                held.update((row["instance"], row["rank"]) for row in rows)
            return held == running() and sum(held.values()) == STREAMS

        # At one picker's first request Envoy has no connection to it yet: warm both up.
        while Counter(status for status, _ in await asyncio.gather(*(ask() for _ in range(8)))) != {200: 8}:
            await asyncio.sleep(0.1)
        streams = [asyncio.ensure_future(ask(stream=True, max_tokens=TOKENS)) for _ in range(STREAMS)]
        await group.until(as_owners_say, what="every stream is where its owner has put it")
        assert len({url for url, _ in running()}) == len(engines)  # of both owners

        owned = [await group.owns(one) for one in group.all]
        assert all(owned)
        victim, survivor = group.all
        victim.signal(signal.SIGKILL)
        killed_s = asyncio.get_running_loop().time()
        statuses = Counter()
        moved = False
        while not moved:
            statuses.update(status for status, _ in await asyncio.gather(*(ask() for _ in range(4))))
            moved = await group.owned(len(engines))
        assert set(statuses) <= HARMLESS
        assert await group.owns(survivor) == set(urls)
        assert not any(task.done() for task in streams), "they were to outlive the move: make them longer"

        async def well():
            return {status for status, _ in await asyncio.gather(*(ask() for _ in range(12)))} == {200}

        moved_s = asyncio.get_running_loop().time()
        await group.until(well, what="requests go to the living picker only")
        well_s = asyncio.get_running_loop().time()
        print(
            f"owned again {moved_s - killed_s:.2f} s after the kill, answers meanwhile {dict(statuses)}; "
            f"all well after {well_s - killed_s:.2f} s"
        )
        rows = Counter((row["instance"], row["rank"]) for row in await group.ledger(survivor))
        assert rows <= running()  # those of the dead picker's streams show in the engines' reports
        before = [sum(engine.answers.values()) for engine in engines]
        await asyncio.gather(*(ask() for _ in range(48)))
        after = [sum(engine.answers.values()) for engine in engines]
        assert all(b > a for a, b in zip(before, after, strict=True)), "the moved engines serve again"

        for status, body in await asyncio.gather(*streams):
            assert status == 200
            assert body.endswith(b"[DONE]\n\n")
            assert body.count(b'"text":') >= TOKENS

        async def idle():
            return not await group.leases() and not any(engine.core.busy for engine in engines)

        await group.until(idle, what="nothing is left")
        rows = await group.ownership(survivor)
        assert rows["far_requests"] == rows["kept_requests"] == 0
        assert "Traceback" not in survivor.said
