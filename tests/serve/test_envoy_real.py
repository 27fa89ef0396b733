"""A real Envoy, real sockets: no lease missing, none early, none left, whatever becomes of a request."""

from __future__ import annotations

import asyncio
import io
import json
import random
import sys
from pathlib import Path

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("grpc")
pytest.importorskip("envoy.service.ext_proc.v3.external_processor_pb2")

from envoy_rig import EMPTY, RANK, NotingPicker, Worker, envoy, free_ports, make_driver, residue, run, until  # noqa: E402

from equipoise.errors import InputError  # noqa: E402
from equipoise.serve.envoy.ext_proc import PickerServer  # noqa: E402
from equipoise.serve.envoy.held import DESTINATION  # noqa: E402
from equipoise.serve.envoy.picker import Picker  # noqa: E402

pytestmark = pytest.mark.proof

PATH = "/v1/completions"
SOME = ("ok", "ok", "ok", "json", "client_before", "client_after", "upstream_after", "upstream_before")


def body(do="stream", **more):
    return {"model": "m", "prompt": "word " * 50, "max_tokens": 10, "do": do, "stream": do != "json"} | more


@pytest.mark.parametrize("access_log", [True, False])
def test_mixed_requests_leave_no_lease_and_end_none_early(tmp_path, access_log):
    count = 1500 if access_log else 600

    async def test():
        async with Worker() as one, Worker() as two:
            driver = make_driver([one.url, two.url])
            picker = NotingPicker(driver)
            gone: dict[str, int] = {}
            over: set[str] = set()
            early: list[str] = []

            def note(held):
                name = held.headers["x-request-id"]
                gone[name] = gone.get(name, 0) + 1
                if held.lease is not None and not (name in over or name in one.ended or name in two.ended):
                    early.append(name)

            picker.on_gone = note
            async with (
                PickerServer(picker, "127.0.0.1:0") as server,
                envoy(tmp_path, [server.address], [one.url, two.url], access_log=access_log) as url,
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            ):
                if access_log:  # Envoy opens the log's stream with the first entry
                    async with session.post(url + PATH, json=body("json")) as answer:
                        await answer.read()
                    await until(lambda: picker.logging == 1)
                wishes = random.Random(1)
                todo = iter([(f"r{k}", wishes.choice(SOME), wishes.random()) for k in range(count)])
                statuses: dict[str, int] = {}

                async def client():
                    for name, kind, chance in todo:
                        await one_request(session, url, name, kind, chance, over, statuses, picker.begun)

                await asyncio.gather(*(client() for _ in range(48)))
                await until(lambda: residue(picker) == EMPTY)
                mixed = {name: n for name, n in gone.items() if name.startswith("r")}
                assert len(mixed) == count  # none missing,
                assert set(mixed.values()) == {1}  # each once,
                assert early == []  # none before its request was over
                view = driver.router.view()
                ends = picker.counts
                assert ends["late_log"] == 0
                assert sum(view.counts[k] for k in ("finished", "aborted")) == view.counts["dispatched"]
                assert statuses["upstream_before"] in (502, 503)
                if access_log:  # the log knows why
                    assert ends["finished"] > count / 3
                    assert ends["client_gone"] > count / 10
                    assert ends["reset"] > count / 10
                else:  # what went by does not: after good headers it is taken for finished
                    assert ends["finished"] > count / 2
                    assert ends["client_gone"] > 0
                    assert ends["no_answer"] > count / 20

    run(test)()


async def one_request(session, url, name, kind, chance, over, statuses, begun):
    headers = {"x-request-id": name}
    do = {"json": "json", "upstream_after": "abort", "upstream_before": "reset"}.get(kind, "stream")
    asked = body(do, chunks=2 + int(chance * 4), gap_s=0.002 + 0.01 * chance)
    if kind == "client_before":
        asked["first_s"] = 5.0
        task = asyncio.create_task(session.post(url + PATH, json=asked, headers=headers).__aenter__())
        await until(lambda: name in begun)
        await asyncio.sleep(0.05 * chance)
        over.add(name)
        task.cancel()
        return
    answer = await session.post(url + PATH, json=asked, headers=headers).__aenter__()
    if kind == "client_after":
        await answer.content.read(1)
        over.add(name)
        answer.close()
        return
    statuses[kind] = answer.status
    try:
        await answer.read()
    except aiohttp.ClientError:
        assert kind == "upstream_after"
    else:  # where the reset overtook the headers, Envoy answers itself
        assert kind != "upstream_after" or answer.status in (502, 503)
    answer.release()


def test_who_gives_up_before_the_first_byte_is_over_before_its_stream(tmp_path):
    """`over` of the test above is set after the client's abort is under way: here the order is made sure of."""

    async def test():
        async with Worker() as worker:
            picker = NotingPicker(make_driver([worker.url]))
            async with (
                PickerServer(picker, "127.0.0.1:0") as server,
                envoy(tmp_path, [server.address], [worker.url]) as url,
            ):
                ended = asyncio.Event()
                picker.on_gone = lambda held: ended.set()
                async with aiohttp.ClientSession() as session:
                    task = asyncio.create_task(session.post(url + PATH, json=body(first_s=30.0)).__aenter__())
                    await until(lambda: picker.driver.router.view().leases == 1)
                    await asyncio.sleep(0.3)
                    assert not ended.is_set()
                    task.cancel()
                    await until(ended.is_set)
                await until(lambda: residue(picker) == EMPTY)
                assert picker.counts == {"client_gone": 1}
                await until(lambda: list(worker.ended.values()) == ["cancelled"])  # the engine stops as well

    run(test)()


def test_what_clients_say_of_ranks_and_endpoints_never_arrives(tmp_path):
    async def test():
        async with Worker() as one, Worker() as two:
            driver = make_driver([one.url])
            async with (
                PickerServer(Picker(driver), "127.0.0.1:0") as server,
                envoy(tmp_path, [server.address], [one.url, two.url]) as url,
                aiohttp.ClientSession() as session,
            ):
                spoofed = {
                    RANK: "77",
                    "X-Data-Parallel-Rank": "78",
                    "x_data_parallel_rank": "79",
                    DESTINATION: f"127.0.0.1:{two.port}",
                    "x-override-anything": "1",
                    "x-dynamo-worker-instance-id": "5",
                    "x-envoy-retry-on": "5xx",
                    "x-equipoise-picker": "1/2",
                }
                asked = body("json", data_parallel_rank=9)
                for _ in range(4):
                    async with session.post(url + PATH, json=asked, headers=spoofed) as answer:
                        assert answer.status == 200
                assert two.seen == []
                ranks = []
                for _, headers, raw in one.seen:
                    ranks.append(headers[RANK])
                    assert b"data_parallel_rank" not in raw
                    assert int(headers["content-length"]) == len(raw)
                    left = {name for name in headers if name in spoofed or "_" in name}
                    assert left <= {RANK, DESTINATION}
                    assert headers[DESTINATION] == f"127.0.0.1:{one.port}"
                assert set(ranks) <= {"0", "1"}

    run(test)()


def test_an_endpoint_envoy_does_not_know_is_503_and_never_another_worker(tmp_path):
    async def test():
        async with Worker() as known, Worker() as unknown:
            picker = Picker(make_driver([unknown.url]))
            async with (
                PickerServer(picker, "127.0.0.1:0") as server,
                envoy(tmp_path, [server.address], [known.url]) as url,
                aiohttp.ClientSession() as session,
            ):
                for _ in range(3):
                    async with session.post(url + PATH, json=body()) as answer:
                        assert answer.status == 503
                await until(lambda: residue(picker) == EMPTY)
                assert known.seen == unknown.seen == []
                assert picker.counts["finished"] == 0

    run(test)()


def test_a_queued_request_waits_and_a_refused_one_is_told_why(tmp_path):
    async def test():
        async with Worker() as worker:
            driver = make_driver([worker.url], ranks=1, batch=1, queue_ttl_s=1.0, max_queued_requests=1)
            picker = Picker(driver)
            async with (
                PickerServer(picker, "127.0.0.1:0") as server,
                envoy(
                    tmp_path, [server.address], [worker.url], queue_ttl_s=1.0, message_timeout_s=2.0
                ) as url,
                aiohttp.ClientSession() as session,
            ):
                view = driver.router.view
                first = asyncio.create_task(status_of(session, url, body(chunks=60, gap_s=0.01)))
                await until(lambda: view().leases == 1)
                second = asyncio.create_task(status_of(session, url, body()))
                await until(lambda: view().queued_requests == 1)
                status, headers, text = await status_of(session, url, body())
                assert (status, headers["x-equipoise-reason"]) == (429, "queue_requests")
                assert int(headers["retry-after"]) >= 1
                assert text["error"]["code"] == "queue_requests"
                assert (await first)[0] == 200
                assert (await second)[0] == 200  # it waited for the first to end
                await until(lambda: residue(picker) == EMPTY)
                third = asyncio.create_task(status_of(session, url, body(chunks=300, gap_s=0.01)))
                await until(lambda: view().leases == 1)
                status, headers, _ = await status_of(session, url, body())
                assert (status, headers["x-equipoise-reason"]) == (429, "queue_timeout")
                leaves = asyncio.create_task(status_of(session, url, body()))
                await until(lambda: view().queued_requests == 1)
                leaves.cancel()
                await until(lambda: view().queued_requests == 0)
                assert (await third)[0] == 200
                assert len(worker.seen) == 3
                await until(lambda: residue(picker) == EMPTY)

    run(test)()


async def status_of(session, url, asked, path=PATH):
    data = io.BytesIO(json.dumps(asked).encode())
    async with session.post(url + path, data=data) as answer:
        text = await answer.read()
        kind = answer.headers.get("content-type", "")
        return answer.status, answer.headers.copy(), await answer.json() if "json" in kind else text


def test_routes_bodies_and_limits(tmp_path):
    async def test():
        async with Worker() as worker:
            picker = Picker(make_driver([worker.url]))
            async with (
                PickerServer(picker, "127.0.0.1:0") as server,
                envoy(tmp_path, [server.address], [worker.url], most_body_bytes=8 << 20) as url,
                aiohttp.ClientSession() as session,
            ):
                async with session.get(url + "/v1/models") as answer:
                    assert (answer.status, await answer.json()) == (200, {"path": "/v1/models"})
                for method, path, expected in (
                    ("GET", PATH, 404),
                    ("POST", "/sleep", 404),
                    ("POST", "/v1/models", 404),
                    ("GET", "/metrics", 404),
                    ("POST", "/v1/load_lora_adapter", 404),
                    ("POST", "/v1//completions", 200),
                    ("POST", "/x/../v1/completions", 200),
                ):
                    exact = aiohttp.client.URL(url + path, encoded=True)
                    async with session.request(method, exact, json=body("json")) as answer:
                        assert (path, answer.status) == (path, expected)
                for data, code in ((b"", "no_body"), (b"[1]", "invalid_body"), (b"{", "invalid_body")):
                    async with session.post(url + PATH, data=data) as answer:
                        assert answer.status == 400
                        assert (await answer.json())["error"]["code"] == code
                before = len(worker.seen)
                long = body("json", prompt="x" * (6 << 20))
                assert (await status_of(session, url, long))[0] == 200
                assert len(worker.seen[-1][2]) > 6 << 20
                assert (await status_of(session, url, body("json", prompt="x" * (9 << 20))))[0] == 413
                assert len(worker.seen) == before + 1
                await until(lambda: residue(picker) == EMPTY)

    run(test)()


def test_sglang_takes_the_rank_in_the_body_of_its_own_route(tmp_path):
    async def test():
        async with Worker() as worker:
            picker = Picker(make_driver([worker.url], ranks=4, kind="sglang"))
            async with (
                PickerServer(picker, "127.0.0.1:0") as server,
                envoy(tmp_path, [server.address], [worker.url]) as url,
                aiohttp.ClientSession() as session,
            ):
                asked = {"text": "a", "do": "json", "gap_s": 0.2, "routed_dp_rank": 99}
                done = [status_of(session, url, asked, "/generate") for _ in range(4)]
                assert [status for status, _, _ in await asyncio.gather(*done)] == [200] * 4
                assert sorted(json.loads(raw)["routed_dp_rank"] for _, _, raw in worker.seen) == [0, 1, 2, 3]
                assert all(RANK not in headers for _, headers, _ in worker.seen)

    run(test)()


def test_lengths_come_from_usage_if_envoy_reads_it_and_from_bytes_if_not(tmp_path):
    async def test(usage):
        async with Worker() as worker:
            driver = make_driver([worker.url])
            picker = Picker(driver)
            told = []
            release = driver.router.usage
            driver.router.usage = lambda now_s, lease, **n: (told.append(n), release(now_s, lease, **n))[1]
            async with (
                PickerServer(picker, "127.0.0.1:0") as server,
                envoy(tmp_path, [server.address], [worker.url], usage=usage) as url,
                aiohttp.ClientSession() as session,
            ):
                await status_of(session, url, body())  # Envoy opens the log's stream with the first entry
                await until(lambda: picker.logging == 1)
                await until(lambda: residue(picker) == EMPTY)
                told.clear()
                for asked in (body("json"), body(usage=True), body(chunks=8)):
                    assert (await status_of(session, url, asked))[0] == 200
                    await until(lambda: residue(picker) == EMPTY)
        return told

    def pairs(told):
        return [(n["prompt_tokens"], n["output_tokens"]) for n in told]

    exact = pairs(run(test)(True))
    assert exact[:2] == [(11, 7), (30, 9)]
    guessed = pairs(run(test)(False))
    assert len(guessed) == 3
    assert all(prompt is None and 0 < output <= 10 for prompt, output in guessed)


def test_two_pickers_share_the_instances_and_each_hears_of_its_own(tmp_path):
    async def test():
        async with Worker() as one, Worker() as two:
            pickers = [Picker(make_driver([w.url]), name=f"{k}/2") for k, w in ((1, one), (2, two))]
            async with (
                PickerServer(pickers[0], "127.0.0.1:0") as first,
                PickerServer(pickers[1], f"unix:{tmp_path}/picker") as second,
                envoy(tmp_path, [first.address, second.address], [one.url, two.url]) as url,
                aiohttp.ClientSession() as session,
            ):
                answers = await asyncio.gather(*(status_of(session, url, body()) for _ in range(40)))
                assert {status for status, _, _ in answers} == {200}
                for picker, worker in zip(pickers, (one, two), strict=True):
                    await until(lambda picker=picker: residue(picker) == EMPTY)
                    assert picker.counts["finished"] == len(worker.seen) > 0
                await first.close()  # one dies: its instances get nothing, the others all
                await status_of(session, url, body())
                before = len(two.seen)
                await until_all_well(session, url)
                assert len(one.seen) + len(two.seen) >= 40
                assert len(two.seen) > before

    run(test)()


def test_a_killed_picker_cuts_no_answer_and_its_successor_serves(tmp_path):
    async def test():
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        async with (
            Worker() as worker,
            envoy(tmp_path, [address], [worker.url]) as url,
            aiohttp.ClientSession() as session,
        ):
            first = await picker_process(address, worker.url)
            long = body(chunks=100, gap_s=0.02)
            streams = [asyncio.create_task(status_of(session, url, long)) for _ in range(20)]
            await until(lambda: sum(worker.running.values()) == 20)
            first.kill()
            await first.wait()
            statuses = {(await status_of(session, url, body("json")))[0] for _ in range(5)}
            assert statuses == {503}
            assert len(worker.seen) == 20  # none of them reached an engine
            second = await picker_process(address, worker.url)
            try:
                await until_all_well(session, url)
                for status, _, text in await asyncio.gather(*streams):
                    assert (status, text.count(b"tok"), text[-8:]) == (200, 100, b"[DONE]\n\n")
            finally:
                second.kill()
                await second.wait()

    run(test)()


async def picker_process(address, *urls):
    script = Path(__file__).with_name("envoy_picker_process.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), address, *urls, stdout=asyncio.subprocess.PIPE
    )
    assert (await process.stdout.readline()).strip() == b"ready"
    return process


async def until_all_well(session, url):
    """Once Envoy has noticed, no request is lost."""
    for _ in range(200):
        answers = [(await status_of(session, url, body("json")))[0] for _ in range(10)]
        if set(answers) == {200}:
            return
        assert set(answers) <= {200, 503}
        await asyncio.sleep(0.05)
    pytest.fail("requests still go to the dead picker")


def test_a_second_picker_on_the_same_address_is_refused():
    async def test():
        async with Worker() as worker:
            (port,) = free_ports(1)
            async with PickerServer(Picker(make_driver([worker.url])), f"127.0.0.1:{port}"):
                with pytest.raises(InputError, match="cannot listen"):
                    await PickerServer(Picker(make_driver([worker.url])), f"127.0.0.1:{port}").start()

    run(test)()
