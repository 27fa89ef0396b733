"""Processes that share engines: one is stopped and goes on, one is killed, under load; every request counts once."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections import Counter

import aiohttp
import pytest
from replica_cases import RedisServer
from replica_processes import routers
from serve_cases import asked, mock

pytestmark = pytest.mark.proof

CONFIG = """
workers = [{workers}]
shadows = ["least_tokens", "dualpath"]
[replicas]
redis = "{redis}"
ttl_s = 1.5
rebuild_s = 1.0
call_s = 0.7
gone_s = 2.5
hold_s = 15.0
[polling]
period_s = 0.1
"""
CHOICES = re.compile(r'^equipoise_shadow_choices_total{choice="\w+",policy="([^"]+)"} (\S+)$', re.MULTILINE)
PLACED = re.compile(r'^equipoise_events_total{event="dispatched"} (\S+)$', re.MULTILINE)
TAKEN_OVER = re.compile(
    r'^equipoise_ownership_events_total{event="(?:adopted|brought_home)"} (\S+)$', re.MULTILINE
)
HARMLESS_REASONS = {"no_owner", "owner_unreachable"}


@pytest.fixture
def redis(tmp_path):
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


class Load:
    """Long streams that are counted, and short requests all the while."""

    def __init__(self, group) -> None:
        self.group = group
        self.streams: list[tuple[object, asyncio.Task]] = []
        self.shorts: list[asyncio.Task] = []
        self.serial = 0
        self.answers: Counter = Counter()
        self.sent: dict[str, int] = {}
        self.slowest_s = 0.0

    async def stream(self, router) -> None:
        body = asked(stream=True, max_tokens=500_000, user="long")
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            async with self.group.client.post(router.url + "/v1/completions", json=body) as answer:
                assert answer.status == 200
                while await answer.content.readany():
                    pass

    def open(self, router, count: int) -> None:
        for _ in range(count):
            self.streams.append((router, asyncio.ensure_future(self.stream(router))))

    @property
    def living(self) -> int:
        return sum(not task.done() for _, task in self.streams)

    async def short(self, router) -> None:
        self.serial += 1
        name = f"s{self.serial}"
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        body = asked(max_tokens=2, user=name)
        try:
            async with self.group.client.post(
                router.url + "/v1/completions", json=body, timeout=aiohttp.ClientTimeout(total=40.0)
            ) as answer:
                await answer.read()
        except aiohttp.ClientConnectionError:
            assert not router.alive  # it was killed with this request in its hands
            self.answers["cut"] += 1
            return
        self.slowest_s = max(self.slowest_s, loop.time() - began_s)
        self.answers[answer.status] += 1
        self.sent[name] = answer.status
        if answer.status != 200:
            assert answer.status == 503
            assert answer.headers["x-equipoise-reason"] in HARMLESS_REASONS

    async def keep_asking(self, turn) -> None:
        """Short requests, from all who live, until cancelled; those under way then are waited for."""
        running = set()
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                for router in turn():
                    task = asyncio.ensure_future(self.short(router))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    self.shorts.append(task)
                await asyncio.sleep(0.2)
        await asyncio.gather(*self.shorts)


async def shadows_saw_all_it_placed(group, one):
    """Whoever looks on was asked for every request that its router has placed, on what that router owned then."""
    async with group.client.get(one.admin + "/metrics") as answer:
        page = await answer.text()
    chosen = Counter()
    for policy, count in CHOICES.findall(page):
        chosen[policy] += float(count)
    (placed,) = PLACED.findall(page)
    taken_over = sum(float(count) for count in TAKEN_OVER.findall(page))  # others have placed them
    assert len(chosen) == 2
    assert set(chosen.values()) == {float(placed) - taken_over}
    assert "equipoise_shadow_errors_total 0.0" in page


def test_an_owner_is_stopped_and_an_owner_is_killed_under_load(redis, tmp_path):
    asyncio.run(asyncio.wait_for(stopped_and_killed(redis, tmp_path), 240.0))


async def stopped_and_killed(redis, tmp_path):
    engines = [mock(ranks=4, speed_up=0.2) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        path = tmp_path / "pool.toml"
        workers = ", ".join(f'"{engine.url}"' for engine in engines)
        path.write_text(CONFIG.format(workers=workers, redis=redis.url))
        group = await stack.enter_async_context(routers(3, ["--config", str(path)], len(engines)))
        load = Load(group)
        for one in group.all:
            load.open(one, 8)

        async def consistent():
            """Every stream is in one ledger, once, on the rank where it runs."""
            running = Counter()
            for engine in engines:
                for rank, jobs in enumerate(engine.core.running):
                    running[engine.url, rank] += len(jobs)
            held = Counter((row["instance"], row["rank"]) for row in await group.leases())
            return running == held and sum(held.values()) == load.living

        assert load.living == 24
        await group.until(consistent, what="streams are in the ledgers")

        asking = asyncio.ensure_future(load.keep_asking(lambda: group.alive))
        sleeper = group.all[0]
        sleeper.signal(signal.SIGSTOP)
        slept = await group.until(lambda: group.owned(3), what="others own the sleeper's instances")
        sleeper.signal(signal.SIGCONT)
        late = [asyncio.ensure_future(load.short(sleeper)) for _ in range(8)]
        await asyncio.gather(*late)
        asking.cancel()
        await asking
        await group.until(lambda: group.settled(3), what="settled again")
        await group.until(consistent, what="after the pause")

        asking = asyncio.ensure_future(load.keep_asking(lambda: group.alive))
        owned = [len(await group.owns(one)) for one in group.all]
        victim = group.all[owned.index(max(owned))]
        assert max(owned) > 0
        victim.signal(signal.SIGKILL)
        killed = await group.until(lambda: group.owned(3), what="others own the dead one's instances")
        await group.until(lambda: group.settled(3), what="settled without the dead one")
        asking.cancel()
        await asking
        assert load.living == 16
        await group.until(consistent, what="after the kill")

        assert load.answers[200] > 50
        seen = Counter(body.get("user") for engine in engines for body in engine.bodies_seen)
        assert max(len(engine.bodies_seen) for engine in engines) < 1000  # it remembers no more
        wrong = {
            name: (status, seen[name]) for name, status in load.sent.items() if seen[name] != (status == 200)
        }
        assert not wrong  # sent to an engine once, or not at all
        print(
            f"owned again {slept:.2f} s after a stop, {killed:.2f} s after a kill; answers {dict(load.answers)},"
            f" the slowest after {load.slowest_s:.2f} s"
        )

        for _, task in load.streams:
            task.cancel()
        await asyncio.gather(*(task for _, task in load.streams), return_exceptions=True)

        async def idle():
            return not await group.leases() and not any(engine.core.busy for engine in engines)

        await group.until(idle, what="nothing is left")
        for one in group.alive:
            await shadows_saw_all_it_placed(group, one)
            assert "Traceback" not in one.said
            rows = await group.ownership(one)
            assert rows["far_requests"] == rows["kept_requests"] == 0
