"""Adapters: the contract on recorded answers, and what each engine's answers mean."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from recordings import recorded

from equipoise.engines import EngineInstance, get, names
from equipoise.engines.dynamo import read_frontend, read_workers
from equipoise.engines.sglang import read_loads, read_server_info
from equipoise.engines.sglang import read_metrics as read_sglang_metrics
from equipoise.engines.vllm import read_metrics
from equipoise.errors import EngineError, InputError
from equipoise.testing.engine_contract import EngineContract


class TestVllm(EngineContract):
    adapter = get("vllm")
    recorded: ClassVar[dict[str, bytes]] = {"metrics": recorded("vllm-033-metrics.txt")}
    shown = ((0, 0), (30, 2))


class TestSglang(EngineContract):
    adapter = get("sglang")
    recorded: ClassVar[dict[str, bytes]] = {"loads": recorded("sglang-loads.json")}
    shown = ((12, 0), (3, 4))


class TestSglangMetrics(EngineContract):
    """The same adapter, on the gauges."""

    adapter = get("sglang")
    recorded: ClassVar[dict[str, bytes]] = {"metrics": recorded("sglang-metrics.txt")}
    shown = ((12, 0), (3, 4))

    def test_is_an_adapter(self) -> None:
        assert read_sglang_metrics(self.recorded["metrics"]).ranks


class TestSglangOverrides(TestSglang):
    instance = EngineInstance("one", "sglang", ("http://engine:8000",), ranks=8, header_overrides=True)


class TestDynamo(EngineContract):
    adapter = get("dynamo")
    recorded: ClassVar[dict[str, bytes]] = {
        "metrics": recorded("dynamo-worker-metrics.txt"),
        "health": recorded("dynamo-health.json"),
        "frontend": recorded("dynamo-frontend-metrics.txt"),
    }
    shown = ((0, 0), (0, 0), (0, 0), (5, 0))
    instance = EngineInstance(
        "one", "dynamo", ("http://engine:8000",), ranks=8, worker_id="4159082726382388554"
    )


class TestTensorRtLlm(EngineContract):
    adapter = get("trtllm")
    recorded: ClassVar[dict[str, bytes]] = {"metrics": recorded("trtllm-metrics.json")}
    shown = ((32, 0), (5, 3))
    instance = EngineInstance(
        "one", "trtllm", tuple(f"http://engine:{p}" for p in range(8001, 8009)), ranks=8, mode="port"
    )


def test_names_and_an_unknown_one() -> None:
    assert set(names()) >= {"vllm", "sglang", "dynamo", "trtllm"}
    with pytest.raises(InputError, match="did you mean 'sglang'"):
        get("sglnag")


def test_vllm_tokens_come_from_used_blocks() -> None:
    idle, busy = read_metrics(recorded("vllm-033-metrics.txt")).ranks
    assert (busy.context_tokens, busy.exact_context, busy.kv_capacity_tokens) == (16384, False, 65536)
    assert (busy.block_tokens, busy.kv_usage, busy.preemptions) == (16, 0.25, 1)
    assert (idle.context_tokens, idle.kv_usage, idle.preemptions) == (0, 0.0, 0)


@pytest.mark.parametrize("start", ["None", "0", ""])
def test_vllm_capacity_from_blocks_or_unknown(start: str) -> None:
    page = recorded("vllm-033-metrics.txt").replace(
        b'kv_cache_size_tokens="65536"', f'kv_cache_size_tokens="{start}"'.encode()
    )
    assert read_metrics(page).ranks[1].kv_capacity_tokens == 4096 * 16
    unknown = read_metrics(page.replace(b'num_gpu_blocks="4096"', b'num_gpu_blocks="None"')).ranks[1]
    assert unknown.kv_capacity_tokens is None
    assert unknown.context_tokens is None
    assert unknown.kv_usage == 0.25


def test_vllm_without_gauges_is_told_apart_from_idle() -> None:
    with pytest.raises(EngineError, match="num_requests_running"):
        read_metrics(b"# HELP x\nx 1\n")
    seen = read_metrics(b'vllm:num_requests_running{engine="0"} 1\n')
    assert seen.ranks[0].waiting == 0
    assert len(seen.notes) == 2


def test_sglang_age_is_between_two_times_of_the_server() -> None:
    first, second = read_loads(recorded("sglang-loads.json")).ranks
    assert (first.age_s, second.age_s) == (0.25, 0.5)
    assert (second.context_tokens, second.exact_context) == (301000, True)
    assert (second.kv_capacity_tokens, second.max_batch, second.kv_usage) == (400000, 256, 0.75)


@pytest.mark.parametrize(
    ("change", "age_s"),
    [
        ({"timestamp": "2026-11-29T11:59:00+00:00"}, 0.0),  # a clock that runs backwards
        ({"timestamp": "2026-11-29T14:00:05.250000+02:00"}, 0.25),
        ({"timestamp": "2026-11-29T12:00:05.250000"}, 0.25),
        ({"timestamp": "yesterday"}, 0.0),
        ({"timestamp": None}, 0.0),
        ({"timestamp": "2028-11-29T12:00:05"}, 86400.0),
    ],
)
def test_sglang_odd_times(change: dict[str, Any], age_s: float) -> None:
    document = json.loads(recorded("sglang-loads.json")) | change
    assert read_loads(json.dumps(document).encode()).ranks[0].age_s == age_s


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_running_reqs", -1),
        ("num_running_reqs", None),
        ("num_running_reqs", True),
        ("num_running_reqs", "3"),
        ("dp_rank", 1 << 20),
        ("dp_rank", 1),
        ("token_usage", 7.5),
        ("max_total_num_tokens", 1e300),
    ],
)
def test_sglang_bad_values(field: str, value: Any) -> None:
    document = json.loads(recorded("sglang-loads.json"))
    document["loads"][0][field] = value
    with pytest.raises(EngineError, match=r"sglang /v1/loads: .*(rank|num_|token|max_)"):
        read_loads(json.dumps(document).encode())


def test_sglang_exact_contexts_where_metrics_have_them() -> None:
    first, second = read_sglang_metrics(recorded("sglang-metrics.txt")).ranks
    assert (first.context_tokens, first.exact_context) == (47000, True)
    assert (second.kv_capacity_tokens, second.preemptions) == (400000, 2)


def test_sglang_ranks_from_server_info() -> None:
    assert read_server_info(recorded("sglang-server-info.json")) == 8
    assert read_server_info(b"{}") == 1
    for bad in (b"[]", b'{"dp_size": 0}', b'{"dp_size": "8"}', b"x"):
        with pytest.raises(EngineError):
            read_server_info(bad)


def test_trtllm_takes_the_last_iteration_of_each_rank() -> None:
    first, second = get("trtllm").read({"metrics": recorded("trtllm-metrics.json")}).ranks
    assert (first.sequence, first.context_tokens, first.exact_context) == (17, 262144, True)
    assert (second.running, second.waiting, second.max_batch) == (5, 3, 256)
    assert second.kv_capacity_tokens == 12000 * 32


def test_trtllm_copies_of_rank_0_are_not_taken_for_another_ranks_load() -> None:
    """Fanned out by rank 0, a record has rank 0's active requests, blocks and queue beside its own counts."""
    first, second = get("trtllm").read({"metrics": recorded("trtllm-metrics.json")}).ranks
    assert (first.running, first.waiting) == (32, 0), "the queue of four is not rank 0's"
    assert first.kv_usage == 8192 / 12000
    assert second.kv_usage is None


def test_trtllm_records_of_all_ranks_are_their_own() -> None:
    records = json.loads(recorded("trtllm-metrics.json"))
    for record in records:
        record["rank"], record["attentionDpRank"] = record["attentionDpRank"], 0
        record["numActiveRequests"] = 7 + record["rank"]
        record["kvCacheStats"]["usedNumBlocks"] = 6000 * record["rank"]
    first, second = get("trtllm").read({"metrics": json.dumps(records).encode()}).ranks
    assert (first.rank, first.running, first.kv_usage) == (0, 7, 0.0)
    assert (second.rank, second.running, second.kv_usage) == (1, 8, 0.5)


def test_trtllm_alone_has_the_queue() -> None:
    records = [r for r in json.loads(recorded("trtllm-metrics.json")) if r["attentionDpRank"] == 0]
    (load,) = get("trtllm").read({"metrics": json.dumps(records).encode()}).ranks
    assert (load.running, load.waiting) == (32, 4)


def test_trtllm_drained_is_no_news() -> None:
    assert get("trtllm").read({"metrics": b"[]"}).ranks == ()
    assert get("trtllm").pages[0].drained


def test_trtllm_tokens_of_blocks_before_they_were_counted() -> None:
    records = json.loads(recorded("trtllm-metrics.json"))
    for record in records:
        del record["inflightBatchingStats"]["numGenKvTokens"]
    own, copied = get("trtllm").read({"metrics": json.dumps(records).encode()}).ranks
    assert (own.context_tokens, own.exact_context) == (8192 * 32, False)
    assert (copied.context_tokens, copied.exact_context) == (None, False)


def test_trtllm_over_http_takes_no_rank() -> None:
    with pytest.raises(InputError, match="takes no rank"):
        get("trtllm").pin(EngineInstance("t", "trtllm", ("http://t:8000",), ranks=4), 1, "/v1/completions")


def test_dynamo_capacity_from_the_frontend() -> None:
    seen = get("dynamo").read(TestDynamo.recorded)
    busy = seen.ranks[3]
    assert seen.workers == ("4159082726382388554",)
    assert (busy.kv_capacity_tokens, busy.block_tokens, busy.max_batch) == (16384 * 64, 64, 64)
    assert busy.context_tokens == round(0.0006103515625 * 16384 * 64)
    assert seen.notes == ()
    alone = get("dynamo").read({"metrics": recorded("dynamo-worker-metrics.txt")})
    assert alone.ranks[3].context_tokens is None
    assert alone.ranks[3].running == 5
    assert alone.notes


def test_dynamo_frontend_loads() -> None:
    (load,) = read_frontend(recorded("dynamo-frontend-metrics.txt")).ranks
    assert (load.worker_id, load.rank, load.context_tokens) == ("4159082726382388554", 3, 0)


def test_dynamo_workers_that_generate() -> None:
    page = {
        "instances": [{"endpoint": "generate", "instance_id": 7}, {"endpoint": "other", "instance_id": 8}]
    }
    assert read_workers(json.dumps(page).encode()) == ("7",)
    page["instances"][0]["instance_id"] = -1
    with pytest.raises(EngineError, match="instance_id"):
        read_workers(json.dumps(page).encode())


def test_dynamo_needs_the_worker() -> None:
    with pytest.raises(InputError, match="worker id"):
        get("dynamo").pin(EngineInstance("d", "dynamo", ("http://d:8000",), ranks=4), 1, "/v1/completions")


@pytest.mark.parametrize(
    ("kind", "path", "more", "headers", "body"),
    [
        ("vllm", "/v1/completions", {}, {"X-data-parallel-rank": "2"}, ()),
        ("vllm", "/inference/v1/generate", {}, {"X-data-parallel-rank": "2"}, ()),
        ("vllm", "/v1/completions", {"first_rank": 4}, {"X-data-parallel-rank": "2"}, ()),
        (
            "vllm",
            "/v1/completions",
            {"first_rank": 4, "numbering": "global"},
            {"X-data-parallel-rank": "6"},
            (),
        ),
        (
            "vllm",
            "/v1/completions",
            {"first_rank": 4, "numbering": "unknown"},
            {"X-data-parallel-rank": "2"},
            (),
        ),
        ("sglang", "/v1/chat/completions", {}, {"X-Data-Parallel-Rank": "2"}, ()),
        ("sglang", "/generate", {}, {}, (("routed_dp_rank", 2),)),
        ("sglang", "/generate", {"header_overrides": True}, {"x-override-routed-dp-rank": "2"}, ()),
        (
            "dynamo",
            "/v1/completions",
            {"worker_id": "9"},
            {"x-dynamo-worker-instance-id": "9", "x-dynamo-dp-rank": "2"},
            (),
        ),
    ],
)
def test_pins(
    kind: str, path: str, more: dict[str, Any], headers: dict[str, str], body: tuple[Any, ...]
) -> None:
    instance = EngineInstance("i", kind, ("http://h:1",), ranks=4, **more)
    pin = get(kind).pin(instance, 2, path)
    assert dict(pin.headers) == headers
    assert pin.body == body


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": 0},
        {"ranks": 1 << 20},
        {"urls": ()},
        {"urls": ("http://a:1", "http://a:2")},
        {"mode": "port", "ranks": 2},
        {"mode": "both"},
        {"first_rank": -1},
    ],
)
def test_instances_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="instance 'i'"):
        EngineInstance(**{"name": "i", "kind": "vllm", "urls": ("http://a:1",), "ranks": 1, **wrong})
