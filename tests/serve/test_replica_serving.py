"""`equipoise serve` with others before the pool: whoever is asked, the owner places; nothing is lost between them."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from replica_cases import RedisServer, until
from replica_serving import group
from serve_cases import asked, config_for, mock, on_a_loop

from equipoise.cli.app import main
from equipoise.errors import InputError
from equipoise.serve.config_file import read_config
from equipoise.serve.replicas import RedisStore
from equipoise.serve.replicas.store import Beat, Wish
from equipoise.serve.service import Service


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def url(server, request):
    """A database of its own for every test."""
    return f"{server.url}/{abs(hash(request.node.name)) % 16}"


@pytest.fixture(autouse=True)
def clean(server):
    yield
    import socket

    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"FLUSHALL\r\n")
        assert sock.recv(16).startswith(b"+OK")


@on_a_loop
async def test_every_router_serves_every_engine(url):
    async with group(url, [mock(), mock()]) as g:
        for k in (0, 1):
            status, health = await g.get(g.url(k, "/health"))
            assert status == 200, health
            _, found = await g.get(g.url(k, "/workers"))
            assert {row["name"]: row["owner"] for row in found["workers"]} == {
                name: g.services[g.owner_of(name)].owners.name for name in ("i0", "i1")
            }
            assert all(row["is_healthy"] for row in found["workers"])
            _, info = await g.get(g.url(k, "/server_info"))
            assert (info["instances"], info["dp_size"]) == (2, 8)
        assert await asyncio.gather(*(g.complete(k % 2) for k in range(40))) == [200] * 40
        for engine in g.engines:  # both, whoever was asked
            assert sum(row["requests"] for row in engine.seen()["ranks"]) >= 5
        assert all(s.owners.counts["placed_far"] > 0 for s in g.services)


@on_a_loop
async def test_leases_of_the_decision_api_are_known_to_every_router(url):
    async with group(url, [mock(), mock()]) as g:
        leases = [(await g.post(g.url(0, "/v1/decide"), {"context_tokens": 100}))[1] for _ in range(16)]
        assert {one["instance"] for one in leases} == {"i0", "i1"}
        await until(lambda: g.leases() == 16)
        for k in (1, 0):  # told to the wrong router, and to the right one
            rows = [{"lease": one["lease"], "tokens": 5} for one in leases]
            assert (await g.post(g.url(k, "/v1/report"), {"leases": rows}))[1] == {"known": 16, "unknown": 0}
        total = [lambda s=s: int(s.driver.router.view().own_context_tokens.sum()) for s in g.services]
        await until(
            lambda: sum(one() for one in total) == 16 * 110, what="progress is in the owners' ledgers"
        )
        half = {"leases": [{"lease": one["lease"]} for one in leases[:8]]}
        assert (await g.post(g.url(1, "/v1/release"), half))[1] == {"known": 8, "unknown": 0}
        assert (await g.post(g.url(0, "/v1/release"), half))[1] == {"known": 0, "unknown": 8}
        for one in leases[8:]:
            assert (await g.post(g.url(0, "/v1/release"), {"lease": one["lease"]}))[1]["known"] == 1
        nobodys = {"lease": "ffffffffffff-0-000000000000"}
        assert (await g.post(g.url(0, "/v1/release"), nobodys))[1] == {"known": 0, "unknown": 1}
        assert not g.services[0].decide._held


@on_a_loop
async def test_loads_of_ranks_go_to_their_owner(url):
    async with group(url, [mock(), mock()], **{"polling.period_s": 3600.0}) as g:
        here = next(iter(g.serving(0)))
        row = {"instance": here, "rank": 1, "running": 7, "context_tokens": 700, "sequence": 1 << 40}
        assert (await g.post(g.url(1, "/v1/report"), {"ranks": [row]}))[0] == 200
        await until(lambda: g.services[0].driver.router.view().batch.tolist()[1] == 7)
        status, answer = await g.post(g.url(1, "/v1/report"), {"ranks": [row | {"rank": 4}]})
        assert (status, answer["error"]["code"]) == (400, "bad_body")


@on_a_loop
async def test_a_drain_is_the_owners_whoever_is_told_and_goes_with_the_instance(url):
    async with group(url, [mock(), mock()]) as g:
        theirs = next(iter(g.serving(1)))
        status, answer = await g.post(g.admin(0, "/drain"), {"instance": theirs, "rank": 2})
        assert (status, answer) == (200, {"instance": theirs, "rank": 2, "running": 0})

        def drained(k):
            view = g.services[k].driver.router.view()
            names = [view.instance_names[int(i)] for i in view.instance[view.drained]]
            return list(zip(names, view.rank[view.drained].tolist(), strict=True))

        assert drained(1) == [(theirs, 2)]
        await until(lambda: g.services[0].owners.drains.of(theirs) == [2])
        await g.services[1].owners.leave()
        await until(lambda: len(g.serving(0)) == 2)
        assert drained(0) == [(theirs, 2)]
        for body, status in (
            ({"instance": theirs, "rank": 4}, 404),
            ({"instance": "nobody"}, 404),
            ({"instance": theirs}, 200),
        ):
            assert (await g.post(g.admin(0, "/undrain"), body))[0] == status
        assert drained(0) == []


@on_a_loop
async def test_a_second_try_goes_to_an_engine_of_another_owner(url):
    async with group(url, [mock(), mock()]) as g:
        own = next(iter(g.serving(0)))
        engine = g.engines[int(own[1:])]
        engine.faults.add("status", status=503, count=3)
        assert await asyncio.gather(*(g.complete(0) for _ in range(12))) == [200] * 12


@on_a_loop
async def test_the_metrics_of_ownership(url):
    async with group(url, [mock(), mock(), mock()]) as g:
        async with g.client.get(g.admin(0, "/metrics")) as answer:
            page = await answer.text()
        rows = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
        for name, value in (
            ("up", 1),
            ("routers", 2),
            ('instances{owner="self"}', len(g.serving(0))),
            ('instances{owner="other"}', len(g.serving(1))),
            ('instances{owner="nobody"}', 0),
            ("rebuild_seconds_count", g.services[0].owners.counts["rebuilt"]),
        ):
            assert float(rows["equipoise_ownership_" + name]) == value, name
        assert float(rows['equipoise_ownership_events_total{event="gained"}']) >= 1


@on_a_loop
async def test_an_instance_that_is_lost_stays_so_for_its_new_owner(url):
    async with group(url, [mock(), mock()]) as g:
        theirs = next(iter(g.serving(1)))
        g.engines[int(theirs[1:])].faults.add("stall")  # its /health says 503
        await until(lambda: "unhealthy" in g.services[0].watch.problem(theirs))
        await g.services[1].owners.leave()
        await until(lambda: len(g.serving(0)) == 2)
        view = g.services[0].driver.router.view()
        assert view.instance_states[view.instance_names.index(theirs)] == "lost"
        g.engines[int(theirs[1:])].clear_faults()
        await until(lambda: "lost" not in g.services[0].driver.router.view().instance_states)


@on_a_loop
async def test_an_owner_that_takes_calls_and_never_answers(url):
    """Whoever asks it is answered 503 with a reason in time; when its lease ends somebody else places."""

    async def mute(reader, writer):
        await reader.read(-1)
        writer.close()

    listener = await asyncio.start_server(mute, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    store = RedisStore(url)
    wish = Wish("i0", "take")
    for _ in range(100):
        seen = await store.beat(Beat("mute", address, 30.0, 0.0, "secret-of-a-pool", [wish]))
        if seen.rows["i0"].router:
            break
    engine = mock()
    options = {
        "replicas__redis": url,
        "replicas__ttl_s": 0.6,
        "replicas__call_s": 0.3,
        "replicas__hold_s": 0.8,
    }
    async with (
        engine,
        Service(config_for([engine], replicas__gone_s=1.2, replicas__rebuild_s=0.3, **options)) as service,
        aiohttp.ClientSession() as client,
    ):
        await until(lambda: service.owners.ownership.others)
        where = f"http://127.0.0.1:{service.port}/v1/completions"
        async with client.post(where, json=asked()) as answer:
            assert answer.status == 503
            assert answer.headers["x-equipoise-reason"] == "owner_unreachable"
            assert answer.headers["Retry-After"]
        asks = [asyncio.ensure_future(client.post(where, json=asked())) for _ in range(5)]
        epoch = seen.rows["i0"].epoch
        await store.beat(Beat("mute", address, 30.0, 0.0, "", [Wish("i0", "drop", epoch)]))
        await store.beat(Beat("mute", "", 30.0, 0.0, "", []))
        for ask in asks:  # either was in time for the new owner
            async with await ask as answer:
                assert answer.status in (200, 503)
        await until(lambda: service.owners.ownership.mine)
        async with client.post(where, json=asked()) as answer:
            assert answer.status == 200
        await until(lambda: service.driver.router.view().leases == 0)
    listener.close()
    await store.close()


@on_a_loop
async def test_a_router_that_has_slept_asks_before_it_places(url):
    async with group(url, [mock(), mock()]) as g:
        owners = g.services[0].owners
        owners.ownership.known_s -= 10.0  # as after a pause: no beat for a long time
        beats = owners.store.beat
        gate = asyncio.Event()

        async def held(beat):
            await gate.wait()
            return await beats(beat)

        owners.store.beat = held
        asks = [asyncio.ensure_future(g.complete(0)) for _ in range(4)]
        await asyncio.sleep(0.2)
        assert not any(ask.done() for ask in asks)
        gate.set()
        assert await asyncio.gather(*asks) == [200] * 4
        assert owners.counts["woken"] >= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"replicas.redis": "http://x"}, "the address of Redis"),
        ({"replicas.redis": "redis://"}, "the address of Redis"),
        ({"replicas.redis": "redis://h:99999999"}, "the address of Redis"),
        ({"replicas.advertise": "0.0.0.0:1"}, "no address that others can call"),
        ({"replicas.advertise": "nowhere"}, "no HOST:PORT"),
        ({"replicas.advertise": "::1:3"}, "no HOST:PORT"),
        ({"replicas.listen": "h:70000"}, "no HOST:PORT"),
        ({"replicas.token": "short"}, "no key"),
        ({"replicas.pool": "a b"}, "pool"),
        ({"replicas.ttl_s": 0.01}, "ttl_s"),
        ({"replicas.gone_s": 1.0}, "gone_s"),
        ({"replicas.hold_s": float("nan")}, "hold_s"),
    ],
)
def test_settings_that_cannot_be(options, words):
    with pytest.raises(InputError, match=words) as error:
        read_config(None, {"workers_file": "x", **options})
    assert "secret" not in str(error.value)


def test_the_address_of_redis_is_shown_without_its_password():
    made = read_config(None, {"workers_file": "x", "replicas.redis": "redis://me:secret@h:1/2"})
    assert made.replicas.shown == "redis://h:1/2"
    assert "secret" not in repr(made)


@on_a_loop
async def test_pickers_of_envoy_share_instances_and_keep_each_others_leases_alive(url):
    pytest.importorskip(
        "envoy.service.ext_proc.v3.external_processor_pb2",
        reason="needs xds-protos: pip install 'equipoise[envoy]'",
    )
    from equipoise.serve.envoy.held import Held
    from equipoise.serve.envoy.service import PickerService, picker_config

    numbers = iter("12")

    def make(config):
        share = f"{next(numbers)}/2"
        return PickerService(picker_config(config, share), "127.0.0.1:0", share)

    async with group(url, [mock(), mock()], make=make, **{"router.lease_ttl_s": 1.0}) as g:
        body = b'{"model": "tiny", "prompt": "hello", "max_tokens": 5}'
        held = []
        for k in range(16):
            picker = g.services[k % 2].picker
            one = picker.begin({":path": "/v1/completions", "x-request-id": str(k)})
            assert isinstance(one, Held)
            placed = await picker.place(one, body)
            assert isinstance(placed, Held)
            assert ("x-equipoise-picker", f"{k % 2 + 1}/2") in placed.way.headers
            held.append((picker, placed))
        assert {placed.lease.target.name for _, placed in held} == {"i0", "i1"}
        assert any(placed.lease.far for _, placed in held)
        for _ in range(12):  # twice a lease's time, with a sign of life now and then
            await asyncio.sleep(0.2)
            for service in g.services:
                service.picker.sign_of_life()
        assert g.leases() == 16
        assert all(placed.lease.ended is None for _, placed in held)
        for picker, placed in held:
            picker.answered(placed, 200, True)
            picker.gone(placed)
        await until(lambda: g.leases() == 0)
        await until(lambda: [s.under_way for s in g.services] == [0, 0])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--advertise", "h:1"], 2, "there are no other routers"),
        (["--replicas-redis", "redis://u:secret@"], 2, "the address of Redis is none"),
        (["--replicas-redis", "redis://h", "--advertise", "h"], 2, "no HOST:PORT"),
        (["--replicas-redis", "redis://h", "--replicas-token", "abc"], 2, "no key"),
        (["--replicas-redis", "redis://u:secret@127.0.0.1:1", "--check"], 1, "FAIL  redis://127.0.0.1:1: "),
    ],
)
def test_the_command_says_what_is_wrong(arguments, code, words, capsys):
    assert main(["serve", "--worker-urls", "http://127.0.0.1:1", *arguments]) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert "secret" not in said


def test_a_port_for_the_others_that_is_taken(server, capsys):
    where = f"127.0.0.1:{server.port}"
    options = ["--port", "0", "--admin-port", "0", "--replicas-redis", server.url, "--advertise", where]
    assert main(["serve", "--worker-urls", "http://127.0.0.1:1", *options]) == 2
    assert "--replicas-listen" in capsys.readouterr().err


@on_a_loop
async def test_shadows_live_through_changes_of_owner(url):
    async with group(url, [mock(), mock()], shadows=("round_robin", "least_tokens")) as g:
        assert await asyncio.gather(*(g.complete(k % 2) for k in range(10))) == [200] * 10
        await g.services[1].owners.leave()
        await until(lambda: len(g.serving(0)) == 2)
        assert await asyncio.gather(*(g.complete(k % 2) for k in range(10))) == [200] * 10
        async with g.client.get(g.admin(0, "/metrics")) as answer:
            assert answer.status == 200
