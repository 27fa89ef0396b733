"""The admin port, metrics, discovery, the pages of the main port."""

from __future__ import annotations

import asyncio
import json
import re

from prometheus_client.parser import text_string_to_metric_families
from serve_cases import mock, on_a_loop, stage

from equipoise.engines import WorkerSpec


async def page(s, path, *, admin=False, status=200, **body):
    url = (s.admin if admin else s.url) + path
    call = s.client.post(url, json=body) if body else s.client.get(url)
    async with call as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


@on_a_loop
async def test_draining_by_hand():
    async with stage(mock(ranks=2), mock(ranks=2), forwarding__reveal=True) as s:
        assert await page(s, "/drain", admin=True, instance="i0") == {
            "instance": "i0",
            "rank": None,
            "running": 0,
        }
        await page(s, "/drain", admin=True, instance="i1", rank=0)
        for _ in range(5):
            async with s.post() as answer:
                await answer.read()
                assert (answer.headers["x-equipoise-worker"], answer.headers["x-equipoise-rank"]) == (
                    "i1",
                    "1",
                )
        workers = (await page(s, "/workers"))["workers"]
        assert [w["drained_ranks"] for w in workers] == [[0, 1], [0]]
        await page(s, "/undrain", admin=True, instance="i0")
        await page(s, "/undrain", admin=True, instance="i1", rank=0)
        assert not s.view().drained.any()
        await page(s, "/drain", admin=True, status=404, instance="nobody")
        await page(s, "/drain", admin=True, status=404, instance="i0", rank=2)
        await page(s, "/drain", admin=True, status=400, instance="i0", rank=-1)
        await page(s, "/drain", admin=True, status=400, instances="i0")
        async with s.client.post(s.url + "/drain", json={"instance": "i0"}) as answer:
            assert answer.status == 404, "not on the main port"


@on_a_loop
async def test_what_one_can_look_at():
    async with stage(mock(manual=True, ranks=2)) as s:
        task = asyncio.ensure_future(s.post(prompt=[1] * 30).__aenter__())
        await s.until(lambda: s.view().leases == 1)
        rank = int(s.view().own_batch.argmax())
        loads = (await page(s, "/v1/loads"))["loads"]
        assert [(load["dp_rank"], load["num_running_reqs"]) for load in loads] == [(0, 1 - rank), (1, rank)]
        assert loads[rank]["num_used_tokens"] == 30
        assert loads[0]["max_total_num_tokens"] == 1 << 20
        decisions = (await page(s, "/decisions?n=5", admin=True))["decisions"]
        assert [(d["worker"], d["dp_rank"]) for d in decisions] == [("i0", rank)]
        leases = await page(s, "/leases", admin=True)
        assert leases["total"] == 1
        assert leases["leases"][0]["context_tokens"] == 30
        info = await page(s, "/server_info")
        assert (info["dp_size"], info["policy"]) == (2, "equipoise")
        assert (await page(s, "/v1/models"))["data"][0]["id"] == "tiny"
        ranks = (await page(s, "/workers"))["workers"][0]["ranks"]
        assert ranks == [f"{s.engine.url}@0", f"{s.engine.url}@1"]
        s.engine.step(6)
        await (await task).read()


@on_a_loop
async def test_metrics():
    async with stage(mock(manual=True, ranks=2), max_batch=1) as s:
        tasks = [asyncio.ensure_future(s.post(prompt=[1] * 40).__aenter__()) for _ in range(3)]
        await s.until(lambda: s.view().queued_requests == 1)
        async with s.client.get(s.admin + "/metrics") as answer:
            text = await answer.text()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                assert (sample.name, labels) not in found
                found[sample.name, labels] = sample.value
        assert found["equipoise_queued_requests", ()] == 1
        assert found["equipoise_leases", ()] == 2
        assert found["equipoise_fallback_rung", (("rung", "fresh"),)] == 1
        assert found["equipoise_num_used_tokens", (("dp_rank", "0"), ("worker", "i0"))] == 40
        assert found["equipoise_balance_ratio", (("worker", "i0"),)] == 1.0
        assert found["equipoise_step_price", (("worker", "i0"),)] >= found[
            "equipoise_step_price_even", (("worker", "i0"),)
        ] * (1 - 1e-9)
        assert found["equipoise_decision_seconds_count", ()] == 3
        assert found["equipoise_worker_state", (("state", "up"), ("worker", "i0"))] == 1
        while not all(task.done() for task in tasks):
            s.engine.step()
            await asyncio.sleep(0.005)
        for task in tasks:
            await task.result().read()


@on_a_loop
async def test_labels_are_capped():
    async with stage(mock()) as s:
        for k in range(1_000):
            s.service.tally.refused.add(f"reason {k}")
        async with s.client.get(s.admin + "/metrics") as answer:
            text = await answer.text()
        assert len(re.findall(r"^equipoise_refused_total", text, re.MULTILINE)) == 129
        assert 'reason="other"' in text


@on_a_loop
async def test_a_list_of_workers_that_changes(tmp_path):
    engines = [mock(ranks=2, speed_up=50.0), mock(ranks=3)]
    listed = tmp_path / "workers.json"
    listed.write_text("[]")
    options = {"workers_file": str(listed), "discovery_s": 0.05}
    for engine in engines:
        await engine.start()
    try:
        async with stage(ready=False, workers=(), **options) as s:
            s.engines += engines
            async with s.client.get(s.url + "/health") as answer:
                assert answer.status == 503

            def write(*names):
                rows = [{"url": engines[k].url, "instance": f"i{k}"} for k in names]
                new = tmp_path / "new"
                new.write_text(json.dumps({"workers": rows}))
                new.replace(listed)

            write(0)
            await s.until(lambda: s.view().instance_names == ("i0",))
            async with s.post(stream=True, max_tokens=1_000_000) as answer:
                await answer.content.readany()
                write(0, 1)
                await s.until(
                    lambda: set(s.view().instance_names) == {"i0", "i1"}
                )  # in order of their addresses
                write(1)
                await s.until(lambda: s.view().instance_names == ("i1",))
                for _ in range(5):  # what runs there runs on
                    assert await answer.content.readany()
            listed.write_text("{ no json")
            found = await page(s, "/reload", admin=True, a=1)
            assert "no JSON" in found["problems"][0]
            assert s.view().instance_names == ("i1",)
            assert len(s.view().rank) == 3
            async with s.post() as answer:
                assert answer.status == 200
    finally:
        for engine in engines:
            await engine.stop()


@on_a_loop
async def test_a_pool_of_ranks_written_one_by_one():
    engine = mock(ranks=4)

    def workers():
        return tuple(WorkerSpec(engine.url, first_rank=k, ranks=1) for k in range(4))

    async with stage(engine, workers=workers) as s:
        assert len(s.view().rank) == 4
        answers = await asyncio.gather(*(s.post(max_tokens=50) for _ in range(8)))
        assert {answer.status for answer in answers} == {200}
        assert [rank["pinned"] for rank in engine.seen()["ranks"]] == [2, 2, 2, 2]


@on_a_loop
async def test_decisions_are_written_down_as_a_trace(tmp_path):
    from equipoise import traces

    log = tmp_path / "decisions.jsonl"
    async with stage(mock(), decision_log=str(log), shadows=("least_batch", "dualpath")) as s:
        for k in range(6):
            async with s.post(prompt=[1] * (10 + k), max_tokens=3 + k, stream=True) as answer:
                await answer.read()
    trace = traces.read(log)
    assert trace.context_tokens.tolist() == [10, 11, 12, 13, 14, 15]
    assert trace.output_tokens.tolist() == [3, 4, 5, 6, 7, 8]
    shadows = [one["policy"] for one in json.loads(log.read_text().splitlines()[0])["decision"]["shadows"]]
    assert len(shadows) == 2
