"""Everything that goes wrong on the way: the status, the reason, the counter, and nothing left of it."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from aiohttp import web
from serve_cases import asked, mock, on_a_loop, stage

from equipoise.engines import WorkerSpec
from equipoise.testing.mock_engine.shapes import RefusedError

pytestmark = pytest.mark.proof


async def answered(s, **body):
    async with s.post(**body) as answer:
        return answer.status, answer.headers.get("x-equipoise-reason"), await answer.read()


def last_error(data: bytes) -> dict:
    event = data.rstrip().rpartition(b"data: ")[2]
    return json.loads(event)["error"]


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


# -- engines ---------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_an_engine_that_hangs_before_the_first_byte():
    async with stage(mock(), timeouts__first_byte_s=0.2) as s:
        s.engine.faults.add("hang", count=1)
        status, reason, _ = await answered(s)
        assert (status, reason) == (504, "first_byte_timeout")
        assert s.service.tally.timeouts.of == {"first_byte": 1}
        assert s.view().aborted == {"first_byte_timeout": 1}
        await s.until(lambda: not s.engine._hanging, "the engine was told")
        assert (await answered(s))[0] == 200


@pytest.mark.parametrize("kind", ["reset", "bad_chunk"])
@on_a_loop
async def test_a_stream_that_breaks_midway(kind):
    async with stage(mock()) as s:
        s.engine.faults.add(kind, count=1, after_tokens=3)
        status, _, data = await answered(s, stream=True, max_tokens=50)
        assert status == 200
        assert data.count(b'"text":" ') == 3
        assert last_error(data)["code"] == "reset_midway"
        assert b"[DONE]" not in data
        assert s.service.tally.failed.of == {"reset_midway": 1}
        assert s.service.tally.retries.of == {}
        assert s.view().aborted == {"reset_midway": 1}


@on_a_loop
async def test_an_error_event_of_the_engine_passes_and_counts():
    async with stage(mock()) as s:
        s.engine.faults.add("error_event", count=1, after_tokens=3)
        _, _, data = await answered(s, stream=True, max_tokens=50)
        assert b"the engine failed" in data
        assert s.view().aborted == {"error_event": 1}


@on_a_loop
async def test_requests_refused_in_their_stream_eject_nobody():
    """vLLM refuses a streamed request by an event of a 200 (tests/engines/test_vllm_recorded.py)."""
    async with stage(mock()) as s:
        inner = s.engine._shape.pinned

        def refuse(*what):
            if what[1].body.get("user") == "odd":
                raise RefusedError(400, {"error": {"message": "temperature is odd", "code": 400}})
            return inner(*what)

        s.engine._shape.pinned = refuse
        for _ in range(2 * s.service.config.router.breaker_failures):
            status, _, data = await answered(s, stream=True, user="odd")
            assert status == 200
            assert b"temperature is odd" in data
        assert s.view().aborted == {"refused": 2 * s.service.config.router.breaker_failures}
        assert s.view().instance_states == ("up",)
        assert (await answered(s, stream=True))[0] == 200


@on_a_loop
async def test_an_engine_that_stops_in_the_middle():
    async with stage(mock(manual=True), timeouts__idle_s=0.2, polling__health_path="") as s:
        task = asyncio.ensure_future(answered(s, stream=True, max_tokens=50))
        await s.until(lambda: s.engine.core.busy)
        s.engine.step(3)
        status, _, data = await task
        assert status == 200
        assert last_error(data)["code"] == "idle_timeout"
        assert s.service.tally.timeouts.of == {"idle": 1}


@on_a_loop
async def test_a_request_that_takes_longer_than_any_may():
    async with stage(mock(speed_up=1.0), timeouts__total_s=0.3) as s:
        _, _, data = await answered(s, stream=True, max_tokens=100_000)
        assert last_error(data)["code"] == "total_timeout"
        s.engine.faults.add("hang", count=1)
        assert (await answered(s))[:2] == (504, "total_timeout")


@on_a_loop
async def test_a_storm_of_429_passes_and_is_not_tried_again():
    async with stage(mock(), mock()) as s:
        for engine in s.engines:
            engine.faults.add("status", status=429, seconds=7)
        found = await asyncio.gather(*(answered(s) for _ in range(40)))
        assert {status for status, _, _ in found} == {429}
        async with s.post() as answer:
            assert answer.headers["Retry-After"] == "7"
        assert sum(e.seen()["answers"]["429"] for e in s.engines) == 41
        assert s.service.tally.retries.of == {}
        assert s.view().instance_states == ("up", "up")  # a full engine is no broken one


@on_a_loop
async def test_503_is_tried_elsewhere():
    async with stage(mock(), mock()) as s:
        s.engines[0].faults.add("status", status=503, seconds=0)
        found = await asyncio.gather(*(answered(s) for _ in range(8)))
        assert [status for status, _, _ in found] == [200] * 8
        tried = s.engines[0].seen()["answers"]["503"]
        assert tried > 0
        assert s.service.tally.retries.of == {"engine_unavailable": tried}


@on_a_loop
async def test_503_of_the_only_engine_passes():
    async with stage(mock()) as s:
        s.engine.faults.add("status", status=503, count=2, seconds=3)
        status, reason, data = await answered(s)
        assert (status, reason) == (503, "engine")
        assert b"told to refuse" in data


@on_a_loop
async def test_an_address_where_nobody_is():
    engine = mock()

    def workers():
        return (
            WorkerSpec(engine.url, instance="here"),
            WorkerSpec(f"http://127.0.0.1:{closed_port()}", instance="nowhere", ranks=4),
        )

    options = {"polling__lost_after": 1_000_000, "router__trust_after_s": 0.0}
    async with stage(engine, workers=workers, ready=False, **options) as s:
        await s.until(lambda: len(s.view().instance_names) == 2)
        found = await asyncio.gather(*(answered(s) for _ in range(12)))
        assert [status for status, _, _ in found] == [200] * 12
        assert s.service.tally.retries["connect_error"] > 0


@on_a_loop
async def test_the_only_address_is_one_where_nobody_is():
    worker = WorkerSpec(f"http://127.0.0.1:{closed_port()}", ranks=2)
    async with stage(workers=(worker,), ready=False, polling__lost_after=1_000_000) as s:
        found = [await answered(s) for _ in range(7)]
        assert {(status, reason) for status, reason, _ in found} == {
            (502, "connect_error"),
            (503, "no_instance"),
        }
        assert found[0][0] == 502
        assert found[-1][0] == 503  # the breaker has opened
        assert s.view().instance_states == ("open",)


@on_a_loop
async def test_second_tries_have_a_budget():
    engines = mock(), mock()
    options = {
        "forwarding__retry_burst": 3.0,
        "forwarding__retry_share": 0.0,
        "router__breaker_failures": 1_000,
    }
    async with stage(*engines, **options) as s:
        for engine in s.engines:
            engine.faults.add("status", status=503, seconds=0)
        found = [await answered(s) for _ in range(10)]
        assert {status for status, _, _ in found} == {503}
        assert sum(s.service.tally.retries.of.values()) == 3
        assert s.service.tally.retries_refused > 0
        assert sum(e.seen()["answers"]["503"] for e in s.engines) == 13


@on_a_loop
async def test_a_rank_that_is_lost_takes_its_instance_along():
    async with stage(mock(), mock(), forwarding__reveal=True) as s:
        tasks = [asyncio.ensure_future(answered(s, stream=True, max_tokens=1_000_000)) for _ in range(8)]
        await s.until(lambda: s.service.tally.tokens > 100 and s.view().leases == 8)
        on_it = int(s.view().own_batch[:4].sum())
        s.engines[0].lose_rank(1)
        await s.until(lambda: s.view().instance_states[0] == "lost", "health says so")
        await s.until(lambda: sum(task.done() for task in tasks) == on_it)
        for task in tasks:
            if task.done():
                assert last_error(task.result()[2])["code"] in ("reset_midway", "instance_lost")
        status, _, _ = await answered(s)
        assert status == 200
        s.engines[0].clear_faults()
        await s.until(lambda: s.view().instance_states[0] == "up", "it is back")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@on_a_loop
async def test_reports_that_freeze_do_not_hide_what_was_sent():
    async with stage(mock(manual=True, ranks=2)) as s:
        s.engine.faults.add("freeze_metrics")
        tasks = [asyncio.ensure_future(answered(s, prompt=[1] * 50, max_tokens=3)) for _ in range(6)]
        await s.until(lambda: s.view().leases == 6)
        reports = s.view().counts["reports"]
        await s.until(lambda: s.view().counts["reports"] > reports + 20)
        assert s.view().own_batch.tolist() == [3, 3]
        assert s.view().batch.tolist() == [3, 3]
        while not all(task.done() for task in tasks):
            s.engine.step()
            await asyncio.sleep(0.005)
        assert [task.result()[0] for task in tasks] == [200] * 6


@pytest.mark.parametrize("kind", ["metrics_down", "bad_metrics", "slow_metrics"])
@on_a_loop
async def test_metrics_that_fail_lower_the_rung_and_nothing_else(kind):
    options = {"router__stale_after_s": 0.3, "polling__timeout_s": 0.2}
    async with stage(mock(), **options) as s:
        s.engine.faults.add(kind, seconds=5.0)
        await s.until(lambda: s.view().rung == "ledger")
        assert (await answered(s))[0] == 200
        assert s.view().instance_states == ("up",)
        assert s.service.tally.poll_failures["unreadable"] > 0
        s.engine.clear_faults()
        await s.until(lambda: s.view().rung == "fresh")


@on_a_loop
async def test_an_engine_that_goes_and_comes_back_on_its_port():
    engine = mock()
    async with stage(engine, router__trust_after_s=0.1) as s:
        port = int(engine.url.rpartition(":")[2])
        streams = [asyncio.ensure_future(answered(s, stream=True, max_tokens=1_000_000)) for _ in range(3)]
        await s.until(lambda: s.service.tally.tokens > 50)
        await engine.stop()
        for _, _, data in await asyncio.gather(*streams):
            assert last_error(data)["code"] in ("reset_midway", "instance_lost")
        await s.until(lambda: s.view().instance_states == ("lost",))
        assert (await answered(s))[:2] == (503, "no_instance")
        async with s.client.get(s.url + "/health") as answer:
            assert answer.status == 503
        again = mock(port=port)
        async with again:
            s.engines[0] = again
            await s.until(lambda: s.view().instance_states == ("up",))
            assert (await answered(s))[0] == 200


# -- clients ---------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_client_that_leaves_while_it_is_queued():
    async with stage(mock(manual=True, ranks=1, max_batch=1), max_batch=1) as s:
        first = asyncio.ensure_future(answered(s, max_tokens=2))
        await s.until(lambda: s.view().leases == 1)
        waits = [asyncio.ensure_future(answered(s, max_tokens=2)) for _ in range(3)]
        await s.until(lambda: s.view().queued_requests == 3)
        for task in waits[:2]:
            task.cancel()
        await s.until(lambda: s.view().queued_requests == 1)
        while not waits[2].done():
            s.engine.step()
            await asyncio.sleep(0.005)
        assert (await first)[0] == (await waits[2])[0] == 200
        assert s.service.tally.failed.of == {"client_gone": 2}
        assert s.engine.seen()["ranks"][0]["requests"] == 2


@on_a_loop
async def test_a_client_that_leaves_before_the_first_byte():
    async with stage(mock()) as s:
        s.engine.faults.add("hang", count=1)
        task = asyncio.ensure_future(answered(s))
        await s.until(lambda: s.engine._hanging)
        task.cancel()
        await s.until(lambda: not s.engine._hanging, "the engine was told")
        await s.until(lambda: s.view().aborted == {"client_gone": 1})


@on_a_loop
async def test_a_client_that_leaves_midway():
    async with stage(mock(speed_up=20.0)) as s:
        async with s.post(stream=True, max_tokens=1_000_000) as answer:
            await answer.content.readany()
            answer.close()
        await s.until(lambda: s.view().aborted == {"client_gone": 1})
        await s.until(lambda: sum(rank["aborted"] for rank in s.engine.seen()["ranks"]) == 1)
        assert s.view().instance_states == ("up",)


async def deaf(s, **body):
    """A client that sends a request and reads nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", s.service.port))
    data = json.dumps(asked(stream=True, **body)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
    await loop.sock_sendall(sock, head.encode() + data)
    return sock


class Flood:
    """An engine that sends as much as is taken, and knows how much that was."""

    def __init__(self) -> None:
        self.sent, self.ended = 0, 0

    async def __aenter__(self) -> Flood:
        app = web.Application()
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/v1/completions", self.answer)
        self.runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.runner.cleanup()

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text='vllm:num_requests_running{engine="0"} 0\n')

    async def answer(self, request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        try:
            while True:
                await out.write(b": " + b"x" * 16_380 + b"\n\n")
                self.sent += 16_384
        finally:
            self.ended += 1


@on_a_loop
async def test_a_client_that_reads_nothing():
    options = {"timeouts__slow_client_s": 0.3, "high_water_bytes": 16 << 10, "low_water_bytes": 1 << 10}
    async with Flood() as engine, stage(workers=(WorkerSpec(engine.url),), **options) as s:
        sock = await deaf(s)
        await s.until(lambda: s.service.tally.timeouts.of == {"slow_client": 1})
        await s.until(lambda: s.view().aborted == {"slow_client": 1})
        await s.until(lambda: engine.ended, "the engine was told")
        assert s.view().instance_states == ("up",)
        sock.close()


@on_a_loop
async def test_what_a_slow_client_makes_us_hold_is_bounded():
    options = {"timeouts__slow_client_s": 60.0, "high_water_bytes": 16 << 10, "low_water_bytes": 1 << 10}
    async with Flood() as engine, stage(workers=(WorkerSpec(engine.url),), **options) as s:
        sock = await deaf(s)
        sent, still = -1, 0
        while still < 10:  # until nothing moves any more
            still, sent = (still + 1, sent) if sent == engine.sent > 0 else (0, engine.sent)
            await asyncio.sleep(0.05)
        connection = next(iter(s.service._edges[0]._connections))
        held = connection.transport.get_write_buffer_size()
        assert 16 << 10 < held <= (16 << 10) + (256 << 10)
        sock.close()
        await s.until(lambda: s.view().aborted == {"client_gone": 1})
        await s.until(lambda: engine.ended, "the engine was told")


@on_a_loop
async def test_a_body_that_never_comes():
    async with stage(mock(), timeouts__body_s=0.2) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", s.service.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        data = await reader.read()
        assert data.startswith(b"HTTP/1.1 408")
        assert b"body_timeout" in data
        writer.close()
        assert s.service.tally.timeouts.of == {"body": 1}


# -- admission and the end -------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_full_queue_and_one_that_takes_too_long():
    options = {"max_batch": 1, "router__max_queued_requests": 2, "router__queue_ttl_s": 0.3}
    async with stage(mock(manual=True, ranks=1, max_batch=1), **options) as s:
        first = asyncio.ensure_future(answered(s, max_tokens=1))
        await s.until(lambda: s.view().leases == 1)
        waits = [asyncio.ensure_future(answered(s)) for _ in range(2)]
        await s.until(lambda: s.view().queued_requests == 2)
        async with s.post() as answer:
            assert (answer.status, answer.headers["x-equipoise-reason"]) == (429, "queue_requests")
            assert int(answer.headers["Retry-After"]) >= 1
        for status, reason, _ in await asyncio.gather(*waits):
            assert (status, reason) == (429, "queue_timeout")
        s.engine.step(2)
        assert (await first)[0] == 200


@on_a_loop
async def test_a_prompt_that_fits_nowhere():
    async with stage(mock(kv_capacity_tokens=100)) as s:
        status, reason, _ = await answered(s, prompt=[1] * 500)
        assert (status, reason) == (413, "too_large")


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'"x"', b"\xff\xfe", b"[" * 100_000])
@on_a_loop
async def test_bodies_that_are_none(body):
    async with stage(mock()) as s, s.client.post(s.url + "/v1/completions", data=body) as answer:
        assert answer.status == 400
        assert answer.headers["x-equipoise-reason"] == "bad_body"


@on_a_loop
async def test_draining_lets_streams_end():
    async with stage(mock(speed_up=50.0)) as s:
        tasks = [asyncio.ensure_future(answered(s, stream=True, max_tokens=200)) for _ in range(5)]
        await s.until(lambda: s.view().leases == 5)
        drain = asyncio.ensure_future(s.service.drain())
        await asyncio.sleep(0)
        async with s.client.get(s.url + "/health") as answer:
            assert (answer.status, answer.headers["x-equipoise-reason"]) == (503, "draining")
        async with s.client.get(s.url + "/liveness") as answer:
            assert answer.status == 200
        assert (await answered(s))[:2] == (503, "draining")
        for status, _, data in await asyncio.gather(*tasks):
            assert status == 200
            assert data.endswith(b"data: [DONE]\n\n")
        await drain


@on_a_loop
async def test_draining_stops_those_that_take_too_long():
    async with stage(mock(speed_up=1.0), drain_s=0.2) as s:
        streams = [asyncio.ensure_future(answered(s, stream=True, max_tokens=1_000_000)) for _ in range(3)]
        await s.until(lambda: s.service.tally.tokens >= 3)
        s.engine.faults.add("hang", count=1)
        hanging = asyncio.ensure_future(answered(s))
        await s.until(lambda: s.engine._hanging)
        await s.service.drain()
        for _, _, data in await asyncio.gather(*streams):
            assert last_error(data)["code"] == "shutdown"
        assert (await hanging)[:2] == (503, "shutdown")
        assert s.service.tally.failed.of == {"shutdown": 4}
        assert s.view().instance_states == ("up",)
