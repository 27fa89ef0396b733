"""The decision API: leases for other people's data planes."""

from __future__ import annotations

import asyncio
import json
from io import BytesIO

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_cases import mock, on_a_loop, stage

from equipoise.serve import decide


async def ask(s, path, body, status=200):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with s.client.post(s.url + path, data=BytesIO(data)) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


@on_a_loop
async def test_a_rank_is_chosen_and_given_back():
    async with stage(mock("sglang")) as s:
        chosen = await ask(s, "/v1/decide", {"context_tokens": 100, "path": "/generate", "request_id": "r1"})
        assert chosen["request_id"] == "r1"
        assert chosen["body"] == {"routed_dp_rank": chosen["rank"]}
        assert chosen["url"] == s.engine.url
        assert chosen["instance"] == "i0"
        assert chosen["reason"] == "policy/fresh"
        assert s.view().own_context_tokens[chosen["rank"]] == 100
        told = {"leases": [{"lease": chosen["lease"], "tokens": 7}, {"lease": "gone", "tokens": 1}]}
        assert await ask(s, "/v1/report", told) == {"known": 1, "unknown": 1}
        assert s.view().own_context_tokens[chosen["rank"]] == 107
        done = {"lease": chosen["lease"], "prompt_tokens": 101, "output_tokens": 9}
        assert await ask(s, "/v1/release", done) == {"known": 1, "unknown": 0}
        assert await ask(s, "/v1/release", done) == {"known": 0, "unknown": 1}
        assert s.view().counts["finished"] == 1


@on_a_loop
async def test_headers_instead_of_fields():
    async with stage(mock("vllm")) as s:
        chosen = await ask(s, "/v1/decide", {"prompt_bytes": 400})
        assert chosen["headers"] == {"X-data-parallel-rank": str(chosen["rank"])}
        assert s.view().own_context_tokens.sum() == 100
        await ask(s, "/v1/release", {"lease": chosen["lease"], "outcome": "cancelled"})
        assert s.view().aborted == {"cancelled": 1}


@on_a_loop
async def test_a_batch_is_one_round():
    async with stage(mock(ranks=4)) as s:
        rounds = s.view().counts["rounds"]
        found = await ask(s, "/v1/decide", {"requests": [{"context_tokens": 10}] * 8})
        ranks = sorted(one["rank"] for one in found["decisions"])
        assert ranks == [0, 0, 1, 1, 2, 2, 3, 3]
        assert s.view().counts["rounds"] == rounds + 1
        ended = {"leases": [{"lease": one["lease"]} for one in found["decisions"]]}
        assert await ask(s, "/v1/release", ended) == {"known": 8, "unknown": 0}


@on_a_loop
async def test_refusals_say_why_and_when():
    async with stage(mock(kv_capacity_tokens=200, ranks=1), router__max_queued_requests=0) as s:
        big = await ask(s, "/v1/decide", {"context_tokens": 1_000}, 413)
        assert big["reason"] == "too_large"
        first = await ask(s, "/v1/decide", {"context_tokens": 150, "request_id": "a"})
        assert (await ask(s, "/v1/decide", {"context_tokens": 1, "request_id": "a"}, 409))[
            "reason"
        ] == "duplicate"
        both = await ask(s, "/v1/decide", {"requests": [{"context_tokens": 10}, {"context_tokens": 1_000}]})
        assert [one.get("status", 200) for one in both["decisions"]] == [200, 413]
        ended = [{"lease": first["lease"]}, {"lease": both["decisions"][0]["lease"]}]
        await ask(s, "/v1/release", {"leases": ended})


@on_a_loop
async def test_it_waits_while_it_is_queued_and_leaves_when_its_client_does():
    async with stage(mock(max_batch=1, ranks=1), max_batch=1) as s:
        first = await ask(s, "/v1/decide", {"context_tokens": 10})
        waits = [asyncio.ensure_future(ask(s, "/v1/decide", {"context_tokens": 10})) for _ in range(3)]
        await s.until(lambda: s.view().queued_requests == 3)
        waits[0].cancel()
        waits[1].cancel()
        await s.until(lambda: s.view().queued_requests == 1)
        await ask(s, "/v1/release", {"lease": first["lease"]})
        second = await waits[2]
        await ask(s, "/v1/release", {"lease": second["lease"]})
        batch = asyncio.ensure_future(ask(s, "/v1/decide", {"requests": [{"context_tokens": 10}] * 3}))
        await s.until(lambda: s.view().queued_requests == 2)
        batch.cancel()  # the one that was placed is given back
        await s.until(lambda: s.view().leases == s.view().queued_requests == 0)


@on_a_loop
async def test_leases_nobody_speaks_of_end():
    async with stage(mock(), router__lease_ttl_s=0.4) as s:
        silent = await ask(s, "/v1/decide", {"context_tokens": 10})
        alive = await ask(s, "/v1/decide", {"context_tokens": 10})
        while s.view().leases == 2:
            await ask(s, "/v1/report", {"leases": [{"lease": alive["lease"]}]})
            await asyncio.sleep(0.02)
        assert await ask(s, "/v1/release", {"lease": silent["lease"]}) == {"known": 0, "unknown": 1}
        assert await ask(s, "/v1/release", {"lease": alive["lease"]}) == {"known": 1, "unknown": 0}
        assert s.view().aborted == {"expired": 1}


@on_a_loop
async def test_nobody_ends_a_lease_by_guessing():
    async with stage(mock(manual=True)) as s:
        chosen = await ask(s, "/v1/decide", {"context_tokens": 10})
        stream = asyncio.ensure_future(s.post().__aenter__())
        await s.until(lambda: s.view().leases == 2)
        mark, key, _ = chosen["lease"].split("-")
        for guess in (
            f"{mark}-{key}",
            f"{mark}-{key}-0",
            *(f"{mark}-{k:x}-" for k in s.service.driver.leases),
        ):
            assert await ask(s, "/v1/release", {"lease": guess}) == {"known": 0, "unknown": 1}
        assert s.view().leases == 2
        s.engine.step(6)
        assert (await stream).status == 200
        await ask(s, "/v1/release", {"lease": chosen["lease"]})


@on_a_loop
async def test_loads_that_others_report():
    async with stage(mock(ranks=2), polling__period_s=30.0, router__settle_s=0.0) as s:
        row = {"instance": "i0", "rank": 1, "running": 9, "context_tokens": 5_000, "max_batch": 64}
        await ask(s, "/v1/report", {"ranks": [row]})
        assert s.view().batch.tolist() == [0, 9]
        assert (await ask(s, "/v1/decide", {"context_tokens": 10}))["rank"] == 0
        for wrong in (
            {"instance": "x"},
            {"rank": 2},
            {"rank": -1},
            {"running": -1},
            {"age_s": -1},
            {"kv_usage": 2},
        ):
            assert "error" in await ask(s, "/v1/report", {"ranks": [row | wrong]}, 400)
        s.service.driver.router.tick(s.service.driver.now_s())
        for lease in list(s.service.driver.leases.values()):
            lease.finished()


WRONG = [
    b"",
    b"[]",
    b"{",
    {},
    {"context_tokens": -1},
    {"context_tokens": "5"},
    {"context_tokens": 1.5},
    {"context_tokens": 1, "unknown": 2},
    {"context_tokens": 1, "path": "/v1/embeddings"},
    {"context_tokens": 1, "path": "http://elsewhere/"},
    {"requests": []},
    {"requests": [{}]},
    {"requests": [{"context_tokens": 1}] * 1_025},
]


@on_a_loop
async def test_what_is_no_question():
    async with stage(mock()) as s:
        for body in WRONG:
            assert (await ask(s, "/v1/decide", body, 400))["error"]["code"] == "bad_body"
        for body in (b"", {}, {"leases": []}, {"lease": ""}, {"lease": "a", "outcome": "odd"}):
            await ask(s, "/v1/release", body, 400)
        for body in (b"x", {"leases": [{"lease": "a", "tokens": -1}]}):
            await ask(s, "/v1/report", body, 400)
        await ask(s, "/v1/decide", b" " * ((1 << 20) + 1), 413)


@on_a_loop
async def test_it_can_be_off():
    async with stage(mock(), decide=False) as s, s.client.post(s.url + "/v1/decide", json={}) as answer:
        assert answer.status == 404


@settings(max_examples=15, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.sampled_from(
    ["requests", "leases", "lease", "context_tokens", "ranks", "rank", "tokens", "outcome"]), x)))  # fmt: skip
def test_any_document(document):
    @on_a_loop
    async def body():
        async with stage(mock(ranks=1), ready=False) as s:
            for path in ("/v1/decide", "/v1/release", "/v1/report"):
                async with s.client.post(s.url + path, json=document) as answer:
                    assert answer.status in (200, 400, 413, 503), await answer.text()
            for lease in list(s.service.driver.leases.values()):
                lease.finished()

    body()


def test_the_schemas_accept_what_is_accepted():
    schemas = decide.schemas()

    def check(name, document):
        jsonschema.validate(document, {"$ref": f"#/$defs/{name}", "$defs": schemas["$defs"]})

    check("Ask", {"context_tokens": 5, "session": "a"})
    check("AskMany", {"requests": [{"prompt_bytes": 5}]})
    check("Chosen", {"request_id": "a", "lease": "b", "rank": 1, "headers": {"a": "b"}})
    check("Report", {"ranks": [{"instance": "a", "rank": 0, "running": 3}]})
    check("Ended", {"lease": "a", "outcome": "failed", "reason": "reset"})
    for name, wrong in (("Ask", {"context_tokens": -1}), ("Ended", {}), ("Report", {"ranks": [{}]})):
        with pytest.raises(jsonschema.ValidationError):
            check(name, wrong)
