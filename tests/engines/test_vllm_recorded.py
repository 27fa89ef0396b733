"""What a real vLLM has answered (scripts/record-vllm), against the adapter, the counter, and the mock engine."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, ClassVar

import pytest
from recordings import FIXTURES, recorded

from equipoise import cost as costs
from equipoise.engines import EngineInstance, TokenCounter, get, rank_reports
from equipoise.engines.numbering import Probe
from equipoise.engines.vllm import read_metrics
from equipoise.testing.engine_contract import EngineContract
from equipoise.testing.mock_engine.core import LockStep
from equipoise.testing.mock_engine.requests import asked
from equipoise.testing.mock_engine.shapes import Picture, RefusedError, Setting, Vllm

parser = pytest.importorskip("prometheus_client.parser", reason="pip install 'equipoise[serve]'")

STREAMS = sorted(path.name for path in FIXTURES.glob("vllm-*.sse"))
TOKENS = {"vllm-completions-two.sse": 8}  # of the others: 6
SPELLED_OUT = {"vllm-chat-no-usage.sse"}
"""Without a count of vLLM's own: its last event has the last token beside why it ended, and an empty text here."""


@cache
def answers() -> dict[str, dict[str, Any]]:
    found = json.loads(recorded("vllm-answers.json"))["answers"]
    assert len({one["name"] for one in found}) == len(found)
    return {one["name"]: one for one in found}


def error(name: str) -> dict[str, Any]:
    return json.loads(answers()[name]["body"])["error"]


class TestVllmRecorded(EngineContract):
    adapter = get("vllm")
    recorded: ClassVar[dict[str, bytes]] = {"metrics": recorded("vllm-metrics.txt")}
    shown = ((0, 0), (8, 2))


class TestVllmPortOfRank1(EngineContract):
    adapter = get("vllm")
    recorded: ClassVar[dict[str, bytes]] = {"metrics": recorded("vllm-port-rank1-metrics.txt")}
    shown = ((3, 0),)


def test_version_and_date_are_said() -> None:
    about = json.loads(recorded("vllm-answers.json"))["recorded"]
    assert about["version"] in recorded("README.md").decode()
    assert about["date"] in recorded("README.md").decode()
    assert json.loads(answers()["version"]["body"])["version"].startswith(about["version"])


def test_capacity_is_what_vllm_says_and_tokens_come_from_blocks() -> None:
    idle, busy = read_metrics(recorded("vllm-metrics.txt")).ranks
    assert idle.kv_capacity_tokens == busy.kv_capacity_tokens == 262_144
    assert busy.context_tokens is not None
    # eight prompts of 1,500 tokens in blocks of 128, and a block that vLLM keeps for itself is not counted
    assert busy.context_tokens == pytest.approx(8 * 12 * 128, rel=0.02)


def test_a_port_a_rank_is_put_together_though_each_says_its_own_number() -> None:
    pages = [read_metrics(recorded(f"vllm-port-rank{rank}-metrics.txt")) for rank in (0, 1)]
    assert [load.rank for page in pages for load in page.ranks] == [0, 1]
    instance = EngineInstance("i", "vllm", ("http://a:1", "http://a:2"), ranks=2, mode="port")
    reports = rank_reports(instance, 0, pages, 5.0)
    assert [(one.rank, one.running) for one in reports] == [(0, 0), (1, 3)]


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("name", STREAMS)
def test_tokens_of_streams(name: str, size: int) -> None:
    data = recorded(name)
    counter = TokenCounter()
    for at in range(0, len(data), size):
        counter.feed(data[at : at + size])
    counter.end()
    tokens = TOKENS.get(name, 6)
    assert counter.done
    assert not counter.failed
    if name in SPELLED_OUT:
        assert tokens - 1 <= counter.tokens <= tokens
        return
    assert (counter.output_tokens, counter.exact) == (tokens, True)
    assert counter.prompt_tokens == (20 if "chat" in name or "responses" in name else 40)


@pytest.mark.parametrize(("name", "prompt"), [("completions", 40), ("chat", 20), ("responses", 20)])
def test_tokens_of_answers_in_one_piece(name: str, prompt: int) -> None:
    counter = TokenCounter(sse=False)
    counter.feed(answers()[f"{name}-plain"]["body"].encode())
    counter.end()
    assert (counter.prompt_tokens, counter.output_tokens, counter.exact) == (prompt, 6, True)


def test_a_bad_pin_is_a_400_that_speaks_of_ranks() -> None:
    for name in ("pin out of range", "pin out of range, chat", "pin below 0"):
        assert answers()[name]["status"] == 400, name
        assert "data_parallel_rank" in error(name)["message"]
    assert answers()["pin 1"]["status"] == 200
    assert answers()["pin is no number"]["status"] == 200, "it is ignored"


def test_a_streamed_completion_is_refused_by_an_event() -> None:
    refused = answers()["pin out of range, stream"]
    assert refused["status"] == 200
    counter = TokenCounter()
    assert counter.feed(refused["body"].encode()) == 0
    assert counter.failed
    assert counter.done
    assert counter.error_status == 400


def test_one_dead_rank_ends_every_stream_and_then_the_server() -> None:
    for rank in "01":
        counter = TokenCounter()
        counter.feed(answers()[f"rank 1 killed, stream of rank {rank}"]["body"].encode())
        assert counter.failed
        assert counter.error_status == 500
    assert answers()["rank 1 killed, 0 s later"]["status"] == 500
    assert answers()["rank 1 killed, 0 s later, health"]["status"] == 503
    assert "Refused" in answers()["rank 1 killed, 1 s later, health"]["ended"]


def test_the_probe_of_numbering_understands_both_answers() -> None:
    for name, expected in (("pin out of range", "local"), ("pin 1", "global")):
        probe = Probe(first_rank=2, ranks=2)
        assert probe.wanted(0.0) is not None
        assert probe.answered(0.0, answers()[name]["status"], answers()[name]["body"]) == expected


def test_with_a_port_a_rank_a_server_knows_rank_0_only() -> None:
    assert answers()["port of rank 1, its own number as pin"]["status"] == 400
    assert answers()["port of rank 1, pin 0"]["status"] == 200
    instance = EngineInstance("i", "vllm", ("http://a:1", "http://a:2"), ranks=2, mode="port")
    assert get("vllm").pin(instance, 1, "/v1/completions").headers == ()


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("no JSON", 400),
        ("no model of that name", 404),
        ("prompt too long", 400),
        ("a field of the wrong kind", 400),
        ("no such route", 404),
        ("no such method", 405),
        ("models", 200),
        ("health", 200),
    ],
)
def test_other_answers(name: str, status: int) -> None:
    assert answers()[name]["status"] == status


def test_the_mock_engine_answers_as_vllm_does() -> None:
    setting = Setting("tiny", 2, 0, "local", 128, 0, header_overrides=False)
    core = LockStep(2, costs.load("h200"), kv_capacity_tokens=262_144, max_batch=8)
    body = asked("/v1/completions", b'{"prompt": [1], "max_tokens": 2}', {}, 0.0)
    with pytest.raises(RefusedError) as refused:
        Vllm().pinned("/v1/completions", body, {"X-data-parallel-rank": "2"}, setting)
    assert refused.value.status == answers()["pin out of range"]["status"]
    assert refused.value.document == json.loads(answers()["pin out of range"]["body"])
    mocked = families(Vllm().metrics(Picture.of(core), core, setting).encode())
    real = families(recorded("vllm-metrics.txt"))
    for name, (kind, labels) in mocked.items():
        assert kind == real[name][0], name
        assert labels <= real[name][1] if "info" in name else labels == real[name][1], name


def families(page: bytes) -> dict[str, tuple[str, set[str]]]:
    """Kind and names of labels of every family."""
    return {
        sample.name: (family.type, set(sample.labels))
        for family in parser.text_string_to_metric_families(page.decode())
        for sample in family.samples
    }
