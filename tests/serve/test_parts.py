"""The small parts of the servers, each alone."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from equipoise.engines import Pin, WorkerSpec
from equipoise.engines.headers import PREFILL_HEADERS, RANK_HEADERS
from equipoise.errors import InputError
from equipoise.serve.forward import answer_headers, pinned_body, request_headers
from equipoise.serve.lengths import Lengths
from equipoise.serve.quiet import QuietLog
from equipoise.serve.retries import RetryBudget
from equipoise.serve.tally import MOST_KEYS, Counter, Histogram
from equipoise.serve.targets import targets_of

# -- what passes -----------------------------------------------------------------------------------------------------


def headers_of(given_headers, **options):
    options = {"keep_authorization": True, "behind_pd_proxy": False} | options
    return CIMultiDict(request_headers(CIMultiDict(given_headers), "id", options.pop("key", None), **options))


@pytest.mark.parametrize("name", sorted(RANK_HEADERS | PREFILL_HEADERS))
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title, lambda n: n.replace("-", "_")])
def test_no_header_that_steers_passes(name, spell):
    assert spell(name) not in headers_of({spell(name): "3", "X-Other": "1"})
    assert (spell(name) in headers_of({spell(name): "3"}, behind_pd_proxy=True)) == (name in PREFILL_HEADERS)


def test_keys_of_clients_and_engines():
    given_headers = {"Authorization": "Bearer c"}
    assert headers_of(given_headers)["Authorization"] == "Bearer c"
    assert "Authorization" not in headers_of(given_headers, keep_authorization=False)
    replaced = headers_of(given_headers, key="e")
    assert replaced.getall("Authorization") == ["Bearer e"]


def test_headers_that_connection_names_stay_here():
    kept = headers_of({"Connection": "X-A, close", "X-A": "1", "X-B": "2"})
    assert "X-A" not in kept
    assert kept["X-B"] == "2"
    back = answer_headers(
        CIMultiDict({"Connection": "X-A", "X-A": "1", "X-B": "2", "Date": "now", "Server": "s"})
    )
    assert list(back.items()) == [("X-B", "2")]


def test_headers_that_may_come_twice_pass_twice():
    many = CIMultiDict([("X-A", "1"), ("X-A", "2")])
    assert CIMultiDict(
        request_headers(many, "id", None, keep_authorization=True, behind_pd_proxy=False)
    ).getall("X-A") == ["1", "2"]
    cookies = CIMultiDict([("Set-Cookie", "1"), ("Set-Cookie", "2")])
    assert answer_headers(cookies).getall("Set-Cookie") == ["1", "2"]


PLAIN = Pin("http://a")


@given(st.dictionaries(st.text(max_size=12), st.integers() | st.text() | st.none(), max_size=5))
def test_bodies_pass_as_they_came(document):
    document.pop("routed_dp_rank", None)
    document.pop("data_parallel_rank", None)
    body = json.dumps(document, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        return
    assert pinned_body(body, PLAIN, "vllm", behind_pd_proxy=False) == body


def test_a_rank_in_a_body_is_taken_out_and_ours_put_in():
    body = b'{"a":1, "routed_dp_rank":5,"\\u0064ata_parallel_rank":6}'
    assert pinned_body(body, PLAIN, "vllm", behind_pd_proxy=False) == b'{"a":1}'
    pin = Pin("http://a", body=(("routed_dp_rank", 2),))
    assert json.loads(pinned_body(body, pin, "sglang", behind_pd_proxy=False)) == {
        "a": 1,
        "routed_dp_rank": 2,
    }
    room = b'{"bootstrap_room": 7, "disagg_prefill_dp_rank": 3}'
    assert pinned_body(room, PLAIN, "sglang", behind_pd_proxy=False) == room  # the prefill side is not ours


def test_workers_in_dynamos_extension():
    body = json.dumps(
        {"nvext": {"backend_instance_id": 1, "dp_rank": 2, "prefill_dp_rank": 3, "greed": True}, "n": 1}
    ).encode()
    assert json.loads(pinned_body(body, PLAIN, "dynamo", behind_pd_proxy=False)) == {
        "nvext": {"greed": True},
        "n": 1,
    }
    behind = json.loads(pinned_body(body, PLAIN, "dynamo", behind_pd_proxy=True))
    assert behind["nvext"] == {"prefill_dp_rank": 3, "greed": True}
    assert pinned_body(body.replace(b"dp_rank", b"dp"), PLAIN, "vllm", behind_pd_proxy=False) != b""
    odd = b'{"nvext": [1], "n":  1}'
    assert pinned_body(odd, PLAIN, "dynamo", behind_pd_proxy=False) == odd


# -- targets ---------------------------------------------------------------------------------------------------------


def test_workers_become_instances():
    one, two = targets_of(
        (WorkerSpec("http://a:1"), WorkerSpec("http://b:1", ranks=4, engine="sglang")), "vllm", 0
    )
    assert (one.sized, one.ranks, two.sized, two.ranks) == (False, 1, True, 4)
    one.size(one.nodes[0], 8)
    assert one.spec().width == 8
    assert one.pin(7, "/v1/completions").headers == (("X-data-parallel-rank", "7"),)
    assert two.pin(3, "/generate").body == (("routed_dp_rank", 3),)
    assert targets_of((WorkerSpec("http://a:1"),), "vllm", 1)[0].pin(0, "/v1/completions").headers == ()


def test_a_barrier_over_several_addresses():
    workers = [WorkerSpec(f"http://n{k}:1", ranks=2, instance="p", first_rank=2 * k) for k in (1, 0, 2)]
    (target,) = targets_of(workers, "vllm", 0)
    assert target.ranks == 6
    assert [target.pin(r, "/v1/completions").url for r in range(6)] == [
        f"http://n{k}:1" for k in (0, 0, 1, 1, 2, 2)
    ]
    assert target.pin(3, "/v1/completions").headers == (("X-data-parallel-rank", "1"),)
    assert target.nodes[1].probe is not None
    for wrong in (
        [
            WorkerSpec("http://a:1", ranks=2, instance="p"),
            WorkerSpec("http://b:1", ranks=2, instance="p", first_rank=3),
        ],
        [
            WorkerSpec("http://a:1", ranks=2, instance="p"),
            WorkerSpec("http://b:1", ranks=2, instance="p", first_rank=1),
        ],
        [WorkerSpec("http://a:1", instance="p"), WorkerSpec("http://b:1", instance="p", first_rank=1)],
    ):
        with pytest.raises(InputError):
            targets_of(wrong, "vllm", 0)


# -- small things ----------------------------------------------------------------------------------------------------


def test_a_budget_of_second_tries():
    budget = RetryBudget(0.25, 2.0)
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    for _ in range(4):
        budget.deposit()
    assert budget.withdraw()
    for _ in range(1_000):
        budget.deposit()
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]


def test_logs_do_not_flood(caplog):
    clock = [0.0]
    say = QuietLog(logging.getLogger("quiet"), 1.0, lambda: clock[0])
    with caplog.at_level("INFO"):
        assert [say("a", "first\nforged line") for _ in range(5)] == [True, False, False, False, False]
        assert say("b", "other")
        clock[0] = 1.5
        assert say("a", "again")
        for k in range(1_000):
            say(f"kind {k}", "many")
    texts = [record.getMessage() for record in caplog.records]
    assert texts[:3] == ["first forged line", "other", "again (4 more before)"]
    assert len(texts) < 300


def test_counters_are_bounded_and_histograms_cumulate():
    counter = Counter()
    for k in range(1_000):
        counter.add(str(k))
    assert len(counter.of) == MOST_KEYS + 1
    assert counter["other"] == 1_000 - MOST_KEYS
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == 12.0


def test_tokens_an_event_stands_for():
    lengths = Lengths()
    assert lengths.per_event("m") == 1.0
    lengths.learn_event("m", 10, 10)
    assert not lengths._events
    for _ in range(300):
        lengths.learn_event("m", 10, 30)
        lengths.learn_event("odd", 10, 9_999_999)
    assert lengths.per_event("m") == pytest.approx(3.0, rel=0.02)
    assert lengths.per_event("odd") == 1.0
    for k in range(1_000):
        lengths.learn_event(f"m{k}", 1, 2)
    assert len(lengths._events) == 256
