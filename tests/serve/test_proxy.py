"""The proxy before engines that are well: pins, bytes, headers, counts."""

from __future__ import annotations

import asyncio
import json
from io import BytesIO

import aiohttp
import pytest
from aiohttp import web
from serve_cases import asked, mock, on_a_loop, stage

from equipoise.engines import WorkerSpec
from equipoise.testing.mock_engine import MockEngine

PINS = {
    "X-Data-Parallel-Rank": "99",
    "x-dp-rank": "3",
    "x_data_parallel_rank": "7",
    "X-Worker-Instance-Id": "5",
}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("vllm", "/v1/completions"),
        ("vllm", "/v1/chat/completions"),
        ("sglang", "/v1/completions"),
        ("sglang", "/generate"),
        ("dynamo", "/v1/chat/completions"),
    ],
)
@on_a_loop
async def test_every_request_is_pinned_to_the_rank_that_was_chosen(kind, path):
    async with stage(mock(kind), forwarding__reveal=True) as s:
        chosen = [0] * 4
        body = asked(messages=[{"role": "user", "content": "hi"}], text="hello", stream=True)
        body |= {"routed_dp_rank": 2, "data_parallel_rank": 1, "sampling_params": {"max_new_tokens": 4}}
        for _ in range(8):
            async with s.client.post(s.url + path, json=body, headers=PINS) as answer:
                assert answer.status == 200, await answer.text()
                assert b"[DONE]" in await answer.read()
                chosen[int(answer.headers["x-equipoise-rank"])] += 1
        seen = s.engine.seen()["ranks"]
        assert [rank["pinned"] for rank in seen] == chosen
        assert [rank["finished"] for rank in seen] == chosen
        assert sum(rank["requests"] for rank in seen) == 8


@on_a_loop
async def test_a_port_a_rank():
    engine = mock(ports="per-rank", ranks=3)

    def workers():
        return tuple(
            WorkerSpec(url, ranks=1, instance="pool", first_rank=k) for k, url in enumerate(engine.urls)
        )

    async with stage(engine, workers=workers, forwarding__reveal=True) as s:
        assert s.view().instance_names == ("pool",)
        tasks = [s.post(max_tokens=50) for _ in range(9)]
        answers = await asyncio.gather(*(task for task in tasks))
        ranks = sorted(int(answer.headers["x-equipoise-rank"]) for answer in answers)
        for answer in answers:
            await answer.read()
        assert ranks == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert [rank["requests"] for rank in engine.seen()["ranks"]] == [3, 3, 3]


@on_a_loop
async def test_nodes_of_one_barrier_that_number_globally():
    first, second = mock(ranks=2), mock(ranks=2, first_rank=2, numbering="global")

    def workers():
        return tuple(
            WorkerSpec(e.url, ranks=2, instance="pool", first_rank=2 * k)
            for k, e in enumerate((first, second))
        )

    async with stage(first, second, workers=workers, polling__numbering_model="tiny") as s:
        await s.until(lambda: s.service.driver.targets[0].nodes[1].engine.numbering == "global")
        answers = await asyncio.gather(*(s.post(max_tokens=50) for _ in range(8)))
        assert [answer.status for answer in answers] == [200] * 8
        for answer in answers:
            await answer.read()
        assert [rank["requests"] for rank in first.seen()["ranks"]] == [2, 2]
        assert sum(rank["pinned"] for rank in second.seen()["ranks"]) >= 4


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
@on_a_loop
async def test_what_comes_back_is_what_the_engine_sent(path, stream):
    body = asked(messages=[{"role": "user", "content": "hi"}], stream=stream, max_tokens=40)
    async with (
        MockEngine(ranks=1, speed_up=float("inf")) as direct,
        aiohttp.ClientSession() as client,
        client.post(direct.url + path, json=body) as answer,
    ):
        expected, kind = await answer.read(), answer.headers["Content-Type"]
    async with stage(mock(ranks=1)) as s, s.client.post(s.url + path, json=body) as answer:
        assert await answer.read() == expected
        assert answer.headers["Content-Type"] == kind


@on_a_loop
async def test_the_ledger_has_the_engines_counts():
    async with stage(mock(manual=True, ranks=1)) as s:
        tasks = [
            asyncio.ensure_future(s.post(prompt=[1] * 30, stream=True, max_tokens=6).__aenter__())
            for _ in range(3)
        ]
        await s.until(
            lambda: s.view().leases == 3 and sum(s.engine.core.batch) + len(s.engine.core.waiting[0]) == 3
        )
        for k in range(1, 6):
            s.engine.step()
            await s.until(lambda k=k: s.view().own_context_tokens[0] == 3 * (30 + k), f"step {k}")
        s.engine.step()
        for task in tasks:
            await (await task).read()
        counts = s.view().counts
        assert (counts["finished"], counts["aborted"]) == (3, 0)
        assert s.service.tally.tokens == 18
        assert s.service.tally.answers.of == {"200": 3}


@on_a_loop
async def test_prompt_lengths_are_learnt():
    async with stage(mock(ranks=1)) as s:
        for _ in range(40):
            async with s.post(prompt="a bc def " * 40) as answer:
                await answer.read()
        told = (await answer.json())["usage"]["prompt_tokens"]
        learnt = s.service.lengths.estimate("tiny", prompt_bytes=len("a bc def " * 40))
        assert abs(learnt - told) <= 0.2 * told


@on_a_loop
async def test_refusals_of_the_engine_pass_and_are_no_failures():
    async with stage(mock(kv_capacity_tokens=64, ranks=2), kv_capacity_tokens=4096) as s:
        for _ in range(7):
            async with s.post(prompt=[1] * 20, max_tokens=100_000) as answer:
                text = await answer.text()
                assert answer.status == 400, text
                assert answer.headers["x-equipoise-reason"] == "engine"
                assert "equipoise" not in text
        assert s.view().instance_states == ("up",)
        assert s.view().aborted == {"refused": 7}


class Recorder:
    """An engine that keeps what it was sent, to the byte."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[tuple[str, str]], bytes, str]] = []

    async def __aenter__(self) -> Recorder:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app, access_log=None)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.runner.cleanup()

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text='vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_running{engine="1"} 0\n'
        )

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.seen.append((list(request.headers.items()), await request.read(), request.path_qs))
        return web.json_response(
            {"usage": {"prompt_tokens": 3, "completion_tokens": 2}},
            headers={"Set-Cookie": "a=b", "Keep-Alive": "timeout=5", "X-Own": "1"},
        )


@on_a_loop
async def test_bytes_and_headers_that_pass_and_that_do_not():
    body = b'{ "model" : "m",\n "prompt":"h\xc3\xa9 \\u00e9", "unknown": {"deep":[1, 2.50, null]}, "max_tokens":3 }'
    async with Recorder() as engine, stage(workers=(WorkerSpec(engine.url),)) as s:
        sent = {
            "Content-Type": "application/json",
            "Authorization": "Bearer client-key",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "1",
            "Proxy-Authorization": "Basic x",
            "TE": "trailers",
            "Accept-Encoding": "gzip",
            "X-Trace": "7",
            "X-Request-Id": "mine",
            **PINS,
            "x-override-routed-dp-rank": "1",
            "x-gateway-destination-endpoint": "10.0.0.1:80",
        }
        async with s.client.post(f"{s.url}/v1/completions?a=1&b=%20", data=body, headers=sent) as answer:
            assert answer.status == 200
            assert "Keep-Alive" not in answer.headers
            assert answer.headers["X-Own"] == "1"
            assert answer.headers["Set-Cookie"] == "a=b"
            assert not any(name.lower().startswith("x-equipoise") for name in answer.headers)
        headers, data, path = engine.seen[0]
        assert data == body
        assert path == "/v1/completions?a=1&b=%20"
        got = {name.lower(): value for name, value in headers}
        assert len(got) == len(headers)
        assert got.pop("x-data-parallel-rank") in ("0", "1")
        assert got["authorization"] == "Bearer client-key"
        assert got["accept-encoding"] == "identity"
        assert got["x-trace"] == "7"
        assert got["x-request-id"] == "mine"
        assert got["content-length"] == str(len(body))
        for name in (
            *("x-hop", "proxy-authorization", "te", "x-dp-rank", "x_data_parallel_rank"),
            *("x-worker-instance-id", "x-override-routed-dp-rank", "x-gateway-destination-endpoint"),
            *("transfer-encoding", "keep-alive"),
        ):
            assert name not in got
        async with s.client.post(f"{s.url}/v1/completions", data=body) as answer:
            await answer.read()
        assert {n.lower() for n, _ in engine.seen[1][0]} >= {"x-request-id", "x-data-parallel-rank"}
        hidden = b'{"prompt":"x","\\u0072outed_dp_rank":1,"data_parallel_rank":0,"max_tokens":1}'
        async with s.client.post(f"{s.url}/v1/completions", data=hidden) as answer:
            await answer.read()
        assert json.loads(engine.seen[2][1]) == {"prompt": "x", "max_tokens": 1}


@on_a_loop
async def test_a_large_body_passes_whole():
    body = json.dumps({"model": "m", "prompt": "w " * (2 << 20), "max_tokens": 1}).encode()
    async with (
        Recorder() as engine,
        stage(workers=(WorkerSpec(engine.url),), limits__body_bytes=8 << 20) as s,
    ):
        async with s.client.post(f"{s.url}/v1/completions", data=BytesIO(body)) as answer:
            assert answer.status == 200
        assert engine.seen[0][1] == body
        async with s.client.post(f"{s.url}/v1/completions", data=BytesIO(b" " * (9 << 20))) as answer:
            assert answer.status == 413


@on_a_loop
async def test_keys():
    async with Recorder() as engine:
        keys = {
            "api_key": "client-secret",
            "forwarding__worker_key": "engine-secret",
            "admin_token": "admin-secret",
        }
        async with stage(workers=(WorkerSpec(engine.url),), **keys) as s:
            url = f"{s.url}/v1/completions"
            for headers in (
                {},
                {"Authorization": "Bearer engine-secret"},
                {"Authorization": "client-secret"},
            ):
                async with s.client.post(url, json=asked(), headers=headers) as answer:
                    assert answer.status == 401
                    assert "secret" not in await answer.text()
            async with s.client.post(
                url, json=asked(), headers={"Authorization": "Bearer client-secret"}
            ) as answer:
                assert answer.status == 200
            assert dict(engine.seen[0][0])["Authorization"] == "Bearer engine-secret"
            for path, status in (("/health", 200), ("/metrics", 401), ("/leases", 401)):
                async with s.client.get(s.admin + path) as answer:
                    assert answer.status == status
            async with s.client.get(
                s.admin + "/metrics", headers={"Authorization": "Bearer admin-secret"}
            ) as answer:
                assert answer.status == 200
            assert "secret" not in repr(s.service.config)


@pytest.mark.proof
@on_a_loop
async def test_two_thousand_streams():
    async with stage(mock(ranks=4, speed_up=50.0, max_batch=4096), router__max_requests=4096) as s:
        n, tokens = 2_000, 20

        async def one(k):
            async with s.post(stream=True, max_tokens=tokens, prompt=[1] * (k % 50 + 1)) as answer:
                assert answer.status == 200
                return (await answer.read()).count(b'"text":" ')

        found = await asyncio.gather(*(one(k) for k in range(n)))
        assert found == [tokens] * n
        assert s.service.tally.tokens == n * tokens
        assert s.view().counts["finished"] == n
        requests = [rank["requests"] for rank in s.engine.seen()["ranks"]]
        assert sum(requests) == n
        assert max(requests) - min(requests) <= n / 10
