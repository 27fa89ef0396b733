"""The mock engine over loopback: pins, pages and faults of each engine, read by our own adapters."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from equipoise.engines import EngineInstance, Probe, TokenCounter, get, set_fields
from equipoise.errors import EngineError, InputError

aiohttp = pytest.importorskip("aiohttp", reason="pip install 'equipoise[serve]'")

from equipoise.cost import StepCost, Term  # noqa: E402
from equipoise.engines import Client  # noqa: E402
from equipoise.testing.mock_engine import MockEngine  # noqa: E402

COST = StepCost("lin", (Term("t", per_request=1.0, per_100k_context=100.0),), constant=10.0, unit="us")
FAST = {"speed_up": math.inf, "cost": COST}
USAGE = {"include_usage": True}
BAD_PAGES = {"bad_metrics": "cannot be read", "metrics_down": "answered 503", "slow_metrics": "within"}
KINDS = ("vllm", "sglang", "dynamo")
Test = Callable[[MockEngine, "aiohttp.ClientSession"], Awaitable[None]]


def serve(test: Test, kind: str = "vllm", **options: Any) -> MockEngine:
    """Run a test against a mock engine; nothing may be left in it afterwards."""

    async def run() -> MockEngine:
        async with (
            MockEngine(kind, **{"ranks": 4, **FAST, **options}) as engine,
            aiohttp.ClientSession() as session,
        ):
            await asyncio.wait_for(test(engine, session), 30)
        return engine

    return asyncio.run(run())


def instance(engine: MockEngine, **more: Any) -> EngineInstance:
    dynamo = engine.kind == "dynamo"
    return EngineInstance(
        "mock",
        engine.kind,
        engine.urls,
        ranks=engine.ranks,
        mode="port" if len(engine.urls) > 1 else "header",
        worker_id=engine.worker_id if dynamo else "",
        metrics_urls=(engine.system_url,) if dynamo else (),
        **more,
    )


def body(tokens: int = 5, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": tokens, "ignore_eos": True, **more}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def post(
    session: Any, target: EngineInstance, rank: int, path: str = "/v1/completions", document: Any = None
) -> tuple[int, bytes]:
    pin = get(target.kind).pin(target, rank, path)
    data = json.dumps(document or body()).encode()
    if pin.body:
        data = set_fields(data, pin.body)
    headers = {"Content-Type": "application/json", **dict(pin.headers)}
    async with session.post(pin.url + path, data=data, headers=headers) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("kind", KINDS)
def test_every_pin_reaches_its_rank(kind: str) -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        target = instance(engine)
        paths = ["/v1/completions", "/v1/chat/completions"] + ["/generate"] * (kind == "sglang")
        documents = {
            "/v1/completions": body(),
            "/v1/chat/completions": body(messages=[{"role": "user", "content": "a b"}]),
            "/generate": {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 5}},
        }
        for path in paths:
            for rank in range(4):
                for _ in range(rank + 1):
                    assert (await post(session, target, rank, path, documents[path]))[0] == 200
        shown = engine.seen()["ranks"]
        assert [r["requests"] for r in shown] == [(rank + 1) * len(paths) for rank in range(4)]
        assert all(r["requests"] == r["pinned"] == r["finished"] for r in shown)
        assert [r["generated_tokens"] for r in shown] == [5 * (rank + 1) * len(paths) for rank in range(4)]

    serve(test, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
@pytest.mark.parametrize(
    "options", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
def test_streams_are_counted_exactly(kind: str, path: str, options: dict[str, bool]) -> None:
    if path == "/generate" and kind != "sglang":
        return
    document: dict[str, Any] = body(7, stream=True, stream_options=options)
    if path == "/generate":
        document = {"text": "a b c", "sampling_params": {"max_new_tokens": 7}, "stream": True}
    if "chat" in path:
        document["messages"] = [{"role": "user", "content": [{"type": "text", "text": "a b c"}]}]

    async def test(engine: MockEngine, session: Any) -> None:
        counter = TokenCounter()
        async with session.post(engine.url + path, json=document) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            async for chunk in response.content.iter_any():
                counter.feed(chunk)
        counter.end()
        assert (counter.tokens, counter.output_tokens, counter.done) == (7, 7, True)
        known = bool(options) or path == "/generate"
        assert counter.exact == known
        assert counter.prompt_tokens == (3 if known else -1)

    serve(test, kind)


def test_a_document_is_counted() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        async with session.post(engine.url + "/v1/completions", json=body(9)) as response:
            counter = TokenCounter(sse=False)
            counter.feed(await response.read())
        assert counter.end() == 9

    serve(test)


@pytest.mark.parametrize(
    ("kind", "headers", "more", "status", "said"),
    [
        ("vllm", {"X-data-parallel-rank": "4"}, {}, 400, "data_parallel_rank 4 is out of range [0, 4)."),
        (
            "vllm",
            {"X-data-parallel-rank": "4"},
            {"stream": True},
            200,
            "data_parallel_rank 4 is out of range [0, 4).",
        ),
        ("vllm", {"X-data-parallel-rank": "-1"}, {}, 400, "out of range"),
        ("vllm", {"X-data-parallel-rank": "two"}, {}, 200, ""),
        ("sglang", {"X-Data-Parallel-Rank": "4"}, {}, 400, "routed_dp_rank=4 out of range [0, 4)"),
        ("sglang", {"X-Data-Parallel-Rank": "two"}, {}, 400, "must be an integer"),
        ("sglang", {}, {"routed_dp_rank": 9}, 400, "out of range"),
        ("sglang", {}, {"data_parallel_rank": 9}, 400, "out of range"),
        ("sglang", {"X-Data-Parallel-Rank": "1"}, {"routed_dp_rank": 9}, 200, ""),
        ("sglang", {"x-override-routed-dp-rank": "9"}, {}, 200, ""),
        ("dynamo", {"x-dp-rank": "9"}, {}, 200, ""),
        ("dynamo", {"x-dp-rank": "9", "x-worker-instance-id": "W"}, {}, 500, "Failed to generate"),
        ("dynamo", {"x-dp-rank": "a", "x-worker-instance-id": "W"}, {}, 500, "Failed to generate"),
        ("dynamo", {"x-dp-rank": "1", "x-worker-instance-id": "17"}, {}, 400, "Invalid request"),
        ("vllm", {}, {"n": 2}, 400, "n is not 1"),
        ("vllm", {}, {"prompt": ["a", "b"]}, 400, "no prompt"),
        ("vllm", {}, {"max_tokens": 0}, 400, "max_tokens"),
        ("vllm", {"x-mock-prompt-tokens": "2000000"}, {}, 400, "holds"),
    ],
)
def test_wrong_pins_answer_as_the_engine_does(
    kind: str, headers: dict[str, str], more: dict[str, Any], status: int, said: str
) -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        sent = {k: engine.worker_id if v == "W" else v for k, v in headers.items()}
        async with session.post(
            engine.url + "/v1/completions", json=body(2, **more), headers=sent
        ) as response:
            assert response.status == status
            assert said in await response.text()

    serve(test, kind)


def test_dynamo_says_which_rank_served() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        document = body(nvext={"extra_fields": ["worker_id"]})
        status, answer = await post(session, instance(engine), 3, "/v1/completions", document)
        assert status == 200
        assert b'"decode_dp_rank": 3' in answer

    serve(test, "dynamo")


@pytest.mark.parametrize("kind", KINDS)
def test_the_client_reads_loads(kind: str) -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        target = instance(engine)
        headers = {"x-mock-prompt-tokens": "50000"}
        headers |= dict(get(kind).pin(target, 2, "/v1/completions").headers)
        jobs = [
            asyncio.create_task(session.post(engine.url + "/v1/completions", json=body(500), headers=headers))
            for _ in range(3)
        ]
        await until(lambda: len(list(engine.core.jobs())) == 3)
        engine.step(30)
        (seen,) = await Client(session).observe(target)
        load = seen.ranks[2]
        assert [r.running for r in seen.ranks] == [0, 0, 3, 0]
        assert load.context_tokens == pytest.approx(3 * 50_030, abs=16)
        assert load.kv_capacity_tokens == 1 << 20
        assert load.age_s >= 0
        if kind == "dynamo":
            assert seen.workers == (engine.worker_id,)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await until(lambda: not engine.core.busy)  # a client that went away frees its rank

    engine = serve(test, kind, manual=True)
    assert engine.core.held_tokens.sum() == 0
    assert engine.seen()["ranks"][2]["aborted"] == 3


def test_reports_are_as_old_as_the_engine_makes_them() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        target = instance(engine)
        job = asyncio.create_task(post(session, target, 1, document=body(100)))
        await until(lambda: engine.core.busy)
        engine.step(14)
        (seen,) = await Client(session).observe(target)
        assert seen.ranks[1].running == 0
        engine.step(1)
        (seen,) = await Client(session).observe(target)
        assert seen.ranks[1].running == 1
        engine.faults.add("freeze_metrics")
        engine.step(85)
        await job
        (seen,) = await Client(session).observe(target)
        assert seen.ranks[1].running == 1  # long finished
        engine.clear_faults()
        (seen,) = await Client(session).observe(target)
        assert seen.ranks[1].running == 0  # an idle engine publishes all the time

    serve(test, "sglang", manual=True)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_port_a_rank(kind: str) -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        target = instance(engine)
        assert len(target.urls) == 4
        for rank in range(4):
            assert (await post(session, target, rank))[0] == 200
        assert [r["requests"] for r in engine.seen()["ranks"]] == [1] * 4
        looks = await Client(session).observe(target)
        assert [len(look.ranks) for look in looks] == [1] * 4
        # the trap: a server that is rank 2 refuses the number 2
        headers = {"X-Data-Parallel-Rank": "2"}
        async with session.post(target.urls[2] + "/v1/completions", json=body(), headers=headers) as response:
            assert response.status == 400

    serve(test, kind, ports="per-rank")


@pytest.mark.parametrize("understands", ["local", "global"])
def test_numbering_is_probed_once(understands: str) -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        unknown = instance(engine, first_rank=4, numbering="unknown")
        probe = Probe(4, 4)
        for _ in range(3):
            await Client(session).probe(unknown, probe, "tiny", 0.0)
        assert probe.numbering == understands
        assert len(engine.headers_seen) == 1
        known = instance(engine, first_rank=4, numbering=probe.numbering)
        before = [r["pinned"] for r in engine.seen()["ranks"]]
        for rank in range(4):
            assert (await post(session, known, rank))[0] == 200
        assert [r["pinned"] - b for r, b in zip(engine.seen()["ranks"], before, strict=True)] == [1] * 4

    serve(test, first_rank=4, numbering=understands)


async def stream(session: Any, engine: MockEngine, tokens: int = 10) -> TokenCounter:
    counter = TokenCounter()
    async with session.post(engine.url + "/v1/completions", json=body(tokens, stream=True)) as response:
        assert response.status == 200
        async for chunk in response.content.iter_any():
            counter.feed(chunk)
    return counter


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("reset", aiohttp.ClientError),
        ("cut", None),
        ("error_event", None),
    ],
)
def test_faults_in_a_stream(kind: str, error: type[Exception] | None) -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        engine.faults.add(kind, count=1, after_tokens=3)
        if error is not None:
            with pytest.raises(error):
                await stream(session, engine)
        else:
            counter = await stream(session, engine)
            assert counter.tokens == 3
            assert (counter.done, counter.failed) == (kind == "error_event", kind == "error_event")
        await until(lambda: not engine.core.busy)
        whole = await stream(session, engine)  # once only
        assert (whole.tokens, whole.done) == (10, True)
        assert engine.seen()["faults"] == {kind: 1}

    serve(test)


def test_a_chunk_that_is_none() -> None:
    """On a bare socket: aiohttp's client, 3.14.5 with its C parser, waits for ever for what follows such a chunk."""

    async def test(engine: MockEngine, session: Any) -> None:
        engine.faults.add("bad_chunk", count=1, after_tokens=3)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rpartition(":")[2]))
        data = json.dumps(body(stream=True)).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
        )
        answer = await reader.read()
        writer.close()
        assert answer.count(b"data: {") == 3
        assert answer.endswith(b"zz\r\nthis is no chunk\r\n")

    serve(test)


def test_refusals_and_a_hang() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        target = instance(engine)
        engine.faults.add("status", count=2, status=429, seconds=3.0, rank=1)
        assert (await post(session, target, 0))[0] == 200
        assert [(await post(session, target, 1))[0] for _ in range(3)] == [429, 429, 200]
        engine.faults.add("hang")
        hanging = asyncio.create_task(post(session, target, 2))
        await until(lambda: bool(engine._hanging))
        assert not hanging.done()
        engine.clear_faults()
        assert (await hanging)[0] == 200
        assert engine.seen()["answers"] == {"200": 3, "429": 2}
        assert engine.seen()["ranks"][1]["refused"] == 2

    serve(test)


def test_a_lost_rank_stalls_its_instance() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        target = instance(engine)
        jobs = [
            asyncio.create_task(post(session, target, rank, document=body(10, stream=True)))
            for rank in (0, 1)
        ]
        await until(lambda: len(list(engine.core.jobs())) == 2)
        engine.step(3)
        engine.lose_rank(1)
        with pytest.raises(aiohttp.ClientError):
            await jobs[1]
        assert (await post(session, target, 1))[0] == 500
        async with session.get(engine.url + "/health") as response:
            assert response.status == 503
        assert not jobs[0].done()
        engine.clear_faults()
        async with session.get(engine.url + "/health") as response:
            assert response.status == 200
        engine.step(7)
        assert (await jobs[0])[0] == 200

    serve(test, manual=True)


def test_stalls_hold_every_step() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        engine.faults.add("stall")
        job = asyncio.create_task(stream(session, engine))
        await until(lambda: engine.core.busy)
        await asyncio.sleep(0.02)
        assert engine.core.steps == 0
        engine.clear_faults()
        assert (await job).tokens == 10

    serve(test)


def test_metrics_that_fail() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        client = Client(session, timeout_s=0.2)
        target = instance(engine)
        for kind, said in BAD_PAGES.items():
            engine.faults.add(kind, seconds=5.0)
            with pytest.raises(EngineError, match=said):
                await client.observe(target)
            engine.clear_faults()
        assert (await client.observe(target))[0].ranks
        gone = EngineInstance("gone", "vllm", ("http://127.0.0.1:9",), ranks=4)
        with pytest.raises(EngineError, match="did not answer"):
            await client.observe(gone)

    serve(test)


def test_control_over_http() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        url = engine.url + "/fault"
        async with session.post(url, json={"kind": "status", "count": 1, "status": 503}) as response:
            assert response.status == 200
        for wrong in ({"kind": "odd"}, {}, {"kind": "hang", "often": 1}, {"kind": "hang", "count": "x"}, []):
            async with session.post(url, json=wrong) as response:
                assert response.status == 400
        async with session.get(url) as response:
            assert [f["kind"] for f in await response.json()] == ["status"]
        assert (await post(session, instance(engine), 0))[0] == 503
        async with session.delete(url) as response:
            assert await response.json() == []
        async with session.get(engine.url + "/seen") as response:
            seen = await response.json()
        assert seen["answers"] == {"503": 1}
        assert seen["headers"][0]["x-data-parallel-rank"] == "0"

    serve(test)


def test_requests_that_end_by_themselves_do_so_the_same_way() -> None:
    async def test(engine: MockEngine, session: Any) -> None:
        lengths = []
        for i in [*range(20), *range(20)]:
            document = {**body(1000), "prompt": [i], "ignore_eos": False}
            counter = TokenCounter(sse=False)
            counter.feed((await post(session, instance(engine), 0, document=document))[1])
            counter.end()
            lengths.append(counter.output_tokens)
        assert lengths[:20] == lengths[20:]
        assert len(set(lengths)) > 5
        assert max(lengths) < 40

    serve(test, mean_output_tokens=20)


@pytest.mark.parametrize("wrong", [{"speed_up": 0}, {"ports": "two"}, {"ranks": 0}, {"cost": "no-such-cost"}])
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        MockEngine("vllm", **wrong)
    with pytest.raises(InputError, match="vllm"):
        MockEngine("vlm")
