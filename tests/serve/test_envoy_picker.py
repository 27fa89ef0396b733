"""The picker without gRPC or Envoy: what it refuses, when leases end, what it learns."""

from __future__ import annotations

import asyncio

import pytest
from envoy_rig import EMPTY, make_driver, residue, run

from equipoise.serve.envoy.held import DESTINATION, PICKER_HEADER, End, Held, Refusal
from equipoise.serve.envoy.lengths import AnswerLengths
from equipoise.serve.envoy.picker import Picker

URL = "http://127.0.0.1:8001"
BODY = b'{"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "stream": true}'


def headers(name="a", **more):
    return {":path": "/v1/completions?x=1", "x-request-id": name} | more


async def placed(picker, name="a", body=BODY) -> Held:
    held = picker.begin(headers(name))
    assert isinstance(held, Held)
    assert await picker.place(held, body) is held
    return held


def test_what_is_refused():
    async def test():
        picker = Picker(make_driver([URL]), api_key="a-long-key")
        key = {"authorization": "Bearer a-long-key"}
        for got, status, reason in (
            (picker.begin(headers()), 401, "key"),
            (picker.begin(headers(authorization="Bearer a-long-ke\u0079\u0308")), 401, "key"),
            (picker.begin(headers() | key | {":path": "/sleep"}), 404, "no_route"),
            (picker.begin(headers() | key, bodyless=True), 400, "no_body"),
            (await picker.place(picker.begin(headers() | key), b"[]"), 400, "invalid_body"),
        ):
            assert isinstance(got, Refusal)
            assert (got.status, got.reason) == (status, reason)
        assert sum(picker.counts.values()) == 5
        assert residue(picker) == EMPTY

    run(test)()


def test_a_pool_without_room_refuses_and_says_why():
    async def test():
        picker = Picker(make_driver([URL], capacity=100))
        held = picker.begin(headers())
        got = await picker.place(held, b'{"prompt": "%s"}' % (b"word " * 1000))
        assert (got.status, got.reason) == (413, "too_large")
        picker.gone(held)
        assert residue(picker) == EMPTY

    run(test)()


def test_the_way_names_endpoint_rank_key_and_picker():
    async def test():
        picker = Picker(
            make_driver([URL]), name="1/2", worker_key=lambda name: "secret" if name == URL else None
        )
        picker.encode_with(lambda pairs: repr(pairs).encode())
        held = await placed(picker)
        assert dict(held.way.headers) == {
            DESTINATION: "127.0.0.1:8001",
            "X-data-parallel-rank": str(held.lease.rank),
            PICKER_HEADER: "1/2",
            "authorization": "Bearer secret",
        }
        assert b"127.0.0.1:8001" in held.way.encoded
        assert held.body is None
        picker.gone(held)

    run(test)()


@pytest.mark.parametrize(
    "name", [b"routed_dp_rank", b"data_parallel_rank", b"\\u0072outed_dp_rank", b"data\\u005fparallel_rank"]
)
def test_a_rank_in_the_body_is_taken_out_however_it_is_written(name):
    async def test():
        picker = Picker(make_driver([URL]))
        held = await placed(picker, body=b'{"prompt": "a  b", "%b": 7}' % name)
        assert held.body == b'{"prompt":"a  b"}'
        picker.gone(held)
        same = await placed(picker, body=b'{"prompt": "routed dp rank, \\u00e9"}')
        assert same.body is None
        picker.gone(same)
        assert residue(picker) == EMPTY

    run(test)()


@pytest.mark.parametrize("log_first", [True, False])
def test_with_a_log_the_lease_ends_when_both_are_there(log_first):
    async def test():
        picker = Picker(make_driver([URL]))
        picker.logging = 1
        held = await placed(picker)
        picker.answered(held, 200, True)
        if log_first:
            picker.logged("a", End("reset"))
            assert held.lease.ended is None
            picker.gone(held)
        else:
            picker.gone(held)
            assert held.lease.ended is None
            picker.logged("a", End("reset"))
        assert held.lease.ended == "reset"
        assert picker.counts == {"reset": 1}
        assert residue(picker) == EMPTY

    run(test)()


def test_a_log_that_does_not_come_is_not_waited_for_long():
    async def test():
        picker = Picker(make_driver([URL]))
        picker.logging = 1
        held = await placed(picker)
        picker.answered(held, 200, True)
        picker.gone(held)
        await asyncio.sleep(0.5)
        assert held.lease.ended == "finished"
        assert picker.counts == {"finished": 1, "late_log": 1}
        picker.logged("a", End("reset"))  # too late
        assert residue(picker) == EMPTY

    run(test)()


def test_ids_are_the_clients_to_choose_and_may_be_all_the_same():
    async def test():
        picker = Picker(make_driver([URL]))
        picker.logging = 1
        many = [await placed(picker, "same") for _ in range(5)]
        for held in many:
            picker.answered(held, 200, True)
        for k in range(9):  # more entries than requests: refused ones have entries too
            if k < 5:
                picker.gone(many[k])
            picker.logged("same", End("finished"))
        assert [held.lease.ended for held in many] == ["finished"] * 5
        assert residue(picker) == EMPTY
        assert picker.driver.router.view().counts["finished"] == 5

    run(test)()


@pytest.mark.parametrize(
    ("status", "by_upstream", "how"),
    [
        (0, True, "client_gone"),
        (200, True, "finished"),
        (404, True, "refused"),
        (429, True, "refused"),
        (500, True, "upstream_error"),
        (503, False, "no_answer"),
    ],
)
def test_without_a_log_what_went_by_says_how_it_ended(status, by_upstream, how):
    async def test():
        picker = Picker(make_driver([URL]))
        held = await placed(picker)
        if status:
            picker.answered(held, status, by_upstream)
        picker.gone(held)
        assert held.lease.ended == how
        assert picker.counts == {how: 1}
        assert residue(picker) == EMPTY

    run(test)()


def test_closing_ends_what_waits_for_its_entry():
    async def test():
        picker = Picker(make_driver([URL]))
        picker.logging = 1
        held = await placed(picker)
        picker.gone(held)
        picker.close()
        assert residue(picker) == EMPTY

    run(test)()


def test_an_open_stream_is_a_request_that_lives():
    async def test():
        now = [0.0]
        driver = make_driver([URL], lease_ttl_s=10.0)
        start_s = driver.now_s()
        driver._clock = lambda: start_s + now[0]
        picker = Picker(driver)
        held = await placed(picker)
        for _ in range(5):
            now[0] += 6.0
            picker.sign_of_life()
            driver.tick()
        assert held.lease.ended is None
        now[0] += 11.0
        driver.tick()
        assert held.lease.ended == "expired"
        picker.gone(held)
        assert residue(picker) == EMPTY

    run(test)()


def test_exact_lengths_teach_the_ratio_of_bytes():
    async def test():
        picker = Picker(make_driver([URL]))
        picker.logging = 1
        exact = b'{"model": "m", "prompt": [1], "max_tokens": 50, "stream": true, "ignore_eos": true}'
        for k in range(200):
            held = await placed(picker, f"r{k}", exact)
            picker.answered(held, 200, True)
            picker.gone(held)
            picker.logged(f"r{k}", End("finished", answer_bytes=5000))
        assert picker.lengths.estimate("m", stream=True, answer_bytes=1000) == 10

    run(test)()


def test_lengths_of_kinds_are_kept_apart_and_few():
    lengths = AnswerLengths()
    for k in range(2000):
        lengths.learn(f"m{k}", stream=True, answer_bytes=100, tokens=10)
    assert len(lengths._known) <= 512
    assert lengths.estimate("m1999", stream=False, answer_bytes=400) == 100
    assert lengths.estimate("m1999", stream=True, answer_bytes=0) == 0
