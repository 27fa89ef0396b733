"""Several routers before one pool, with a real Redis: one owner an instance, no lease lost or doubled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import aiohttp
import pytest
from replica_cases import EMPTY, RedisServer, ledger, node, placed, routers, settled, until

from equipoise.router import Arrival, Reject
from equipoise.serve.driver import Lease
from equipoise.serve.replicas.wire import (
    Ask,
    Asks,
    Placed,
    Places,
    State,
    States,
    StatesTaken,
    decode,
    encode,
)

pytestmark = pytest.mark.proof


@pytest.fixture
def redis(tmp_path):
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


def run(test, seconds=60):
    asyncio.run(asyncio.wait_for(test, seconds))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_instances_are_shared_evenly_and_every_request_finds_its_owner(redis, count):
    async def body():
        async with routers(redis.url, count) as nodes:
            owned = [n.serving for n in nodes]
            assert set.union(*owned) == {"i0", "i1", "i2", "i3"}
            assert sum(map(len, owned)) == 4
            leases = await asyncio.gather(*(placed(nodes[k % count], f"r{k}", 100 + k) for k in range(64)))
            assert ledger(nodes) == {"leases": 64, "context": sum(100 + k for k in range(64))}
            for lease in leases:
                lease.tokens(5)
            await until(lambda: ledger(nodes)["context"] == sum(105 + k for k in range(64)))
            for lease in leases:
                lease.usage(200, 9)
            await until(lambda: ledger(nodes)["context"] == 64 * 209)
            spread = [b for n in nodes for b in n.router.view().own_batch.tolist()]
            assert max(spread) - min(spread) <= 2
            for k, lease in enumerate(leases):
                assert lease.finished() if k % 2 else lease.aborted("client_gone")
                assert not lease.finished()
            await until(lambda: all(n.residue() == EMPTY for n in nodes))

    run(body())


def test_the_same_decisions_as_one_router(redis):
    """One instance: whoever asks, its owner's ledger decides, as that of a router alone does."""

    async def decisions(count):
        found = []
        async with routers(redis.url, count, instances=1, ranks=8, policy="equipoise") as nodes:
            rng = random.Random(5)
            live = []
            for k in range(150):
                lease = await placed(nodes[rng.randrange(4) % count], f"r{k}", rng.randrange(1, 3000))
                live.append(lease)
                found.append(lease.rank)
                for one in live:
                    one.tokens(1)
                if len(live) > 60:
                    live.pop(rng.randrange(len(live))).finished()
                await until(lambda: all(p.untold == 0 for n in nodes for p in n.owners.peers.values()))
            for one in live:
                one.finished()
            await until(lambda: all(n.residue() == EMPTY for n in nodes))
        return found

    async def body():
        assert await decisions(1) == await decisions(2) == await decisions(3)

    run(body())


def test_a_burst_at_one_router_is_spread_over_the_instances_of_all(redis):
    async def body():
        async with routers(redis.url, 2) as nodes:
            leases = await asyncio.gather(*(placed(nodes[0], f"r{k}") for k in range(64)))
            counts = Counter(lease.name for lease in leases)
            assert sorted(counts) == ["i0", "i1", "i2", "i3"]
            assert max(counts.values()) - min(counts.values()) <= 6  # 16 each
            for lease in leases:
                lease.finished()
            await until(lambda: all(n.residue() == EMPTY for n in nodes))

    run(body())


def test_what_waits_in_the_owners_queue_is_told_when_it_is_placed(redis):
    async def body():
        async with routers(redis.url, 2, instances=1, ranks=1, batch=1) as nodes:
            far = next(n for n in nodes if not n.serving)
            first = await placed(far, "first")
            second = asyncio.ensure_future(far.driver.place(Arrival("second", 10)))
            leaves = asyncio.ensure_future(far.driver.place(Arrival("leaves", 10)))
            owner = next(n for n in nodes if n.serving)
            await until(lambda: owner.router.view().queued_requests == 2)
            leaves.cancel()
            await until(lambda: owner.router.view().queued_requests == 1)
            first.finished()
            lease = await second
            assert isinstance(lease, Lease)
            lease.finished()
            await until(lambda: all(n.residue() == EMPTY for n in nodes))

    run(body())


def test_refusals_are_the_owners(redis):
    async def body():
        async with routers(redis.url, 2, instances=1) as nodes:
            for one in nodes:
                found = await one.driver.place(Arrival("big", 100_001))
                assert isinstance(found, Reject)
                assert (found.request_id, found.status, found.reason) == ("big", 413, "too_large")

    run(body())


def test_the_owner_takes_a_lease_away(redis):
    async def body():
        async with routers(redis.url, 2, instances=1) as nodes:
            far = next(n for n in nodes if not n.serving)
            owner = next(n for n in nodes if n.serving)
            lease = await placed(far, "r")
            told = []
            lease.on_abort = told.append
            owner.driver.instance_lost(0)
            await until(lambda: told == ["instance_lost"])
            assert not lease.finished()
            await until(lambda: all(n.residue() == EMPTY for n in nodes))

    run(body())


def test_who_joins_gets_its_share_and_who_leaves_gives_it_back(redis):
    async def body():
        async with routers(redis.url, 1) as nodes:
            leases = await asyncio.gather(*(placed(nodes[0], f"r{k}", 100) for k in range(40)))
            nodes.append(await node(redis.url))
            await until(lambda: settled(nodes))
            assert ledger(nodes) == {"leases": 40, "context": 4000}
            leases += await asyncio.gather(*(placed(nodes[1], f"s{k}", 100) for k in range(40)))
            for lease in leases:
                lease.tokens(1)
            await until(lambda: ledger(nodes) == {"leases": 80, "context": 8080})
            await nodes[0].owners.leave()
            await until(lambda: len(nodes[1].serving) == 4)
            await until(lambda: ledger(nodes[1:]) == {"leases": 80, "context": 8080})
            for lease in leases:  # also those whose bytes are with the one that has left
                lease.finished()
            await until(lambda: all(n.residue() == EMPTY for n in nodes))

    run(body())


def test_an_owner_dies(redis):
    """Its instances move; the ledger has exactly the peers' requests, and then not the dead router's."""

    async def body():
        async with routers(redis.url, 3, instances=3) as nodes:
            leases = {n: [await placed(n, f"{j}.{k}", 100) for k in range(30)] for j, n in enumerate(nodes)}
            for lease in leases[nodes[1]]:
                lease.tokens(7)
            dead, *rest = nodes
            await dead.die()
            waits = [asyncio.ensure_future(placed(n, f"late{j}", 100)) for j, n in enumerate(rest)]
            await until(lambda: settled(nodes, 3))
            late = await asyncio.gather(*waits)
            right = {"leases": 62, "context": 62 * 100 + 30 * 7}
            await until(lambda: ledger(nodes) == right, what="the dead router's requests are gone")
            await asyncio.sleep(0.3)
            assert ledger(nodes) == right
            for n in rest:
                assert n.router.integrity().sound
                for lease in leases[n]:
                    assert lease.finished()
            for lease in late:
                assert lease.finished()
            await until(lambda: all(n.residue() == EMPTY for n in rest))

    run(body())


@pytest.mark.parametrize("how", ["stop", "pause"])
def test_redis_goes_and_comes_back(redis, how):
    """Owners stay owners all the while; a server that comes back empty is told who they are."""

    async def body():
        async with routers(redis.url, 2) as nodes:
            before = [n.serving for n in nodes]
            epochs = [{k: own.epoch for k, own in n.owners.ownership.mine.items()} for n in nodes]
            leases = await asyncio.gather(*(placed(nodes[k % 2], f"r{k}") for k in range(20)))
            redis.stop() if how == "stop" else redis.pause()
            await until(lambda: not any(n.owners.ownership.up for n in nodes))
            await asyncio.sleep(1.5)  # longer than leases last
            leases += await asyncio.gather(*(placed(nodes[k % 2], f"s{k}") for k in range(20)))
            assert ledger(nodes) == {"leases": 40, "context": 4000}
            assert [n.serving for n in nodes] == before
            redis.start() if how == "stop" else redis.go_on()
            await until(lambda: all(n.owners.ownership.up for n in nodes))
            await asyncio.sleep(1.5)
            assert [n.serving for n in nodes] == before
            assert epochs == [{k: own.epoch for k, own in n.owners.ownership.mine.items()} for n in nodes]
            for lease in leases:
                assert lease.finished()
            await until(lambda: all(n.residue() == EMPTY for n in nodes))

    run(body())


class Cut:
    """A store that one router cannot reach now and then."""

    def __init__(self, store):
        self.store, self.cut = store, False

    async def beat(self, beat):
        from equipoise.serve.replicas.store import StoreError

        if self.cut:
            raise StoreError("cut off")
        return await self.store.beat(beat)

    async def close(self):
        await self.store.close()


def test_an_owner_is_cut_off_from_redis_alone(redis):
    """Another takes its instances with a higher epoch, asks it for its requests, and that ends its own ownership."""

    async def body():
        from equipoise.serve.replicas import RedisStore

        cut = Cut(RedisStore(redis.url, timeout_s=0.3))
        nodes = [await node(cut), await node(redis.url)]
        await until(lambda: settled(nodes))
        leases = await asyncio.gather(*(placed(nodes[k % 2], f"r{k}") for k in range(20)))
        cut.cut = True
        # it is no member any more for the other one, which still reaches it: it asks, and so tells of its epoch
        await until(lambda: len(nodes[1].serving) == 4)
        for lease in leases:  # what the cut-off router tells of them goes to the new owner
            lease.tokens(1)
        await until(lambda: not nodes[0].owners.ownership.mine)
        await until(lambda: ledger(nodes) == {"leases": 20, "context": 2020})
        more = await placed(nodes[0], "more")
        await asyncio.sleep(2.0)  # longer than the silent may be: it answers, so it is not gone
        cut.cut = False
        await until(lambda: settled(nodes))
        await until(lambda: ledger(nodes) == {"leases": 21, "context": 2120})
        for lease in [*leases, more]:
            assert lease.finished()
        await until(lambda: all(n.residue() == EMPTY for n in nodes))
        for n in nodes:
            await n.owners.close()
            n.driver.close()

    run(body())


def test_peers_may_say_everything_twice_and_late(redis):
    async def body():
        async with routers(redis.url, 1, instances=1) as (one,):
            keeper = one.owners.keeper
            asks = Asks("peer", "http://127.0.0.1:9", [Ask("peer:1", 100), Ask("peer:2", 100)])
            first = await keeper.place(asks)
            again = await keeper.place(asks)
            assert first.placed == again.placed
            assert ledger([one]) == {"leases": 2, "context": 200}

            async def hear(gid, rank, tokens, ended=""):
                state = State(gid, "i0", rank, 100, tokens, ended=ended)
                return await keeper.state(States("peer", "http://127.0.0.1:9", [state]))

            ranks = {p.gid: p.rank for p in first.placed}
            for tokens in (5, 3, 5, 9, 9, 1):
                assert (await hear("peer:1", ranks["peer:1"], tokens)) == StatesTaken()
            assert ledger([one]) == {"leases": 2, "context": 209}
            for _ in range(2):
                assert await hear("peer:1", ranks["peer:1"], 12, "finished") == StatesTaken()
            assert await hear("peer:1", ranks["peer:1"], 11) == StatesTaken([], ["peer:1"])
            assert ledger([one]) == {"leases": 1, "context": 100}
            # never heard of: taken over; ended before it was heard of: not placed any more
            assert await hear("peer:7", 2, 50) == StatesTaken()
            assert ledger([one]) == {"leases": 2, "context": 250}
            assert await hear("peer:8", 0, 1, "cancelled") == StatesTaken()
            refused = await keeper.place(Asks("peer", "http://127.0.0.1:9", [Ask("peer:8", 10)]))
            assert refused.placed == [Placed("peer:8", 499, reason="cancelled")]
            assert (
                await keeper.state(States("peer", "http://127.0.0.1:9", [State("peer:9", "nowhere", 0, 10)]))
                != StatesTaken()
            )
            assert keeper.peer_gone("peer") == 2
            assert one.residue() == EMPTY
            assert not one.router.view().instance_reasons[0]

    run(body())


def test_only_who_knows_the_secret_is_let_in(redis):
    async def body():
        async with routers(redis.url, 2, instances=1) as nodes, aiohttp.ClientSession() as session:
            owners = nodes[0].owners
            url = owners.ownership.url
            good = {"Authorization": f"Bearer {owners.beats.secret}"}
            body = encode(Asks("x", "http://127.0.0.1:9", []))

            async def post(path, headers, data):
                async with session.post(url + path, headers=headers, data=data) as answer:
                    return answer.status, await answer.read()

            for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer x"}):
                assert (await post("/internal/place", headers, body))[0] == 401
            assert (await post("/internal/nothing", good, body))[0] == 404
            for data in (b"", b"\xc1", encode([1, 2, 3]), b"{}"):
                assert (await post("/internal/place", good, data))[0] == 400
            status, answer = await post("/internal/place", good, body)
            assert status == 200
            assert decode(answer, Places).placed == []
            assert owners.server.refused >= 3

    run(body())


def test_nobody_owns_anything_without_redis(redis):
    async def body():
        from dataclasses import replace

        from replica_cases import QUICK

        redis.stop()
        one = await node(redis.url, timing=replace(QUICK, hold_s=0.3))
        found = await one.driver.place(Arrival("r", 10))
        assert isinstance(found, Reject)
        assert (found.status, found.reason) == (503, "no_owner")
        assert not one.owners.ownership.up
        await one.owners.close()
        one.driver.close()

    run(body())
