"""The plug-in of vLLM: the ledger is exact whatever happens, and what is not ours to choose is left alone."""

from __future__ import annotations

import asyncio
import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import plugin_engines as played
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.engines.plugins import Options, vllm
from equipoise.engines.plugins.vllm import RUN_ON, install, lacks
from equipoise.types import Ints

QUIET = Options(policy="least_tokens", log_s=0.0)
WHEELS = played.wheels("EQUIPOISE_TEST_VLLM", "vllm==0.33.0")


class Engine:
    """A client of an engine, and what a front end does with it."""

    def __init__(
        self, module: ModuleType, ranks: int = 4, client_count: int = 1, client_index: int = 0, **config: Any
    ):
        self.module = module
        self.config = SimpleNamespace(
            ranks=ranks,
            model_config=SimpleNamespace(is_moe=True, max_model_len=100_000),
            cache_config=SimpleNamespace(kv_cache_size_tokens=config.get("capacity", 50_000)),
            scheduler_config=SimpleNamespace(max_num_seqs=config.get("batch", 64)),
        )
        self.client = module.DPLBAsyncMPClient(
            self.config, None, False, client_count=client_count, client_index=client_index
        )

    @property
    def book(self) -> Any:
        return self.client._equipoise.book

    def add(self, name: str, prompt: int, pin: int | None = None, **fields: Any) -> int:
        request = self.module.EngineCoreRequest(
            request_id=name, prompt_token_ids=[1] * prompt, mm_features=None,
            sampling_params=SimpleNamespace(max_tokens=fields.pop("budget", None), stop=fields.pop("stop", None)),
            pooling_params=fields.pop("pooling", None), arrival_time=0.0, lora_request=None, cache_salt=None,
            data_parallel_rank=pin, **fields,
        )  # fmt: skip
        engine = self.client.get_core_engine_for_request(request)
        assert request.data_parallel_rank == pin, "the engine is not told more than its client said"
        return self.client.core_engines.index(engine)

    def step(self, tokens: dict[str, int], finished: dict[str, Any] | None = None) -> None:
        finish = finished or {}
        output = getattr(self.module, "EngineCoreOutput", played.Output)
        outputs = [
            output(request_id=name, new_token_ids=[7] * tokens.get(name, 0), finish_reason=finish.get(name))
            for name in {**tokens, **finish}
        ]
        message = self.module.EngineCoreOutputs(outputs=outputs, finished_requests=set(finish) or None)
        # as vLLM finds it: a function of the class
        asyncio.run(type(self.client).process_engine_outputs(self.client, message))

    def abort(self, *names: str) -> None:
        asyncio.run(self.client.abort_requests_async(list(names)))

    def own(self) -> tuple[list[int], list[int]]:
        batch, context = self.book.own()
        return batch.tolist(), context.tolist()


def module_of(wheel: Any) -> ModuleType:
    return played.fake_core_client() if wheel is None else played.real_core_client(wheel)[0]


@pytest.fixture(params=["fake", *WHEELS])
def module(request: pytest.FixtureRequest) -> ModuleType:
    found = module_of(None if request.param == "fake" else request.param)
    assert install(found, "0.33.0", QUIET)
    return found


STOP = played.FinishReason.STOP


def test_the_policy_chooses_on_exact_lengths(module: ModuleType) -> None:
    engine = Engine(module, ranks=2)
    assert engine.add("long", 1000) == 0
    assert [engine.add(f"s{i}", 100) for i in range(5)] == [1] * 5  # vLLM's own would take turns
    engine.step({"long": 1, "s0": 3})
    assert engine.own() == ([1, 5], [1001, 503])
    engine.step({"s0": 1}, {"s0": STOP})
    assert engine.own() == ([1, 4], [1001, 400])
    assert engine.client.engine_inflight[engine.client.core_engines[1]] == 4  # vLLM's own book agrees


def test_pinned_requests_go_where_they_say_and_are_counted(module: ModuleType) -> None:
    engine = Engine(module, ranks=3)
    assert engine.add("pinned", 5000, pin=2) == 2
    assert engine.own() == ([0, 0, 1], [0, 0, 5000])
    assert {engine.add(f"r{i}", 100) for i in range(8)} == {0, 1}
    assert engine.book.counts["pinned"] == 1


def test_pooling_requests_are_left_to_vllm(module: ModuleType) -> None:
    engine = Engine(module, ranks=3)
    engine.add("pool", 500, pooling=SimpleNamespace())
    assert engine.book.counts["engine"] == 1
    assert sum(engine.own()[1]) == 500


def test_more_input_of_a_request_follows_it(module: ModuleType) -> None:
    engine = Engine(module, ranks=2)
    first = engine.add("session", 100, resumable=True)
    engine.add("other", 1)
    assert engine.add("session", 50, resumable=True) == first
    assert sum(engine.own()[0]) == 2


def test_an_abort_releases_once(module: ModuleType) -> None:
    engine = Engine(module)
    rank = engine.add("gone", 100)
    engine.abort("gone")
    assert engine.own() == ([0] * 4, [0] * 4)
    assert engine.client.aborted == [(["gone"], engine.client.core_engines[rank])]  # the engine hears of it
    engine.step({"gone": 1})  # what was under way
    engine.abort("gone", "unknown")
    engine.step({}, {"gone": played.FinishReason.ABORT})
    assert engine.own() == ([0] * 4, [0] * 4)
    assert engine.book.counts | {"policy": 0} == dict.fromkeys(engine.book.counts, 0) | {"aborted": 1}


def test_a_stop_string_is_an_end_not_an_abort(module: ModuleType) -> None:
    engine = Engine(module)
    engine.add("a", 100, stop=["\n"])
    engine.add("b", 100)
    engine.abort("a", "b")
    assert (engine.book.counts["ended"], engine.book.counts["aborted"]) == (1, 1)


def test_what_fits_nowhere_goes_where_most_room_is(module: ModuleType) -> None:
    engine = Engine(module, ranks=2, capacity=1000)
    assert [engine.add(f"r{i}", 700) for i in range(2)] == [0, 1]
    engine.step({"r0": 5})
    assert engine.add("r2", 700) == 1
    assert engine.add("r3", 700) == 0
    assert engine.book.counts["overflow"] == 2
    assert engine.own() == ([2, 2], [1405, 1400])


def test_what_vllm_has_lost_is_lost_here_too(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "RECONCILE_S", 0.0)
    engine = Engine(module)
    engine.add("lost", 100)
    engine.add("kept", 100)
    del engine.client.reqs_in_flight["lost"]
    engine.step({"kept": 1})
    assert sum(engine.own()[1]) == 101


def test_the_engine_grows_and_shrinks(module: ModuleType) -> None:
    engine = Engine(module, ranks=2)
    engine.add("a", 100), engine.add("b", 200)
    engine.step({"b": 7})
    engine.client.core_engines.append((2).to_bytes(2, "little"))
    engine.client.lb_engines.append([0, 0, 0.0])
    assert engine.add("c", 50) == 2
    assert engine.own() == ([1, 1, 1], [100, 207, 50])
    del engine.client.core_engines[1:]
    del engine.client.lb_engines[1:]
    assert engine.add("d", 10) == 0
    assert engine.own() == ([2], [110])
    engine.step({}, {"b": STOP, "c": STOP, "a": STOP, "d": STOP})
    assert engine.own() == ([0], [0])


def test_an_error_of_ours_costs_nobody_a_request(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(module, ranks=2)

    def fails(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(engine.book, "place", fails)
    assert sorted(engine.add(f"r{i}", 100) for i in range(4)) == [0, 0, 1, 1]  # vLLM's own turns
    assert engine.client._equipoise.book is None
    assert "leaves: vLLM keeps its own balancer" in caplog.text
    engine.step({"r0": 1}, {"r0": STOP})
    engine.abort("r1")


events = st.lists(
    st.tuples(
        st.sampled_from(["add", "pin", "tokens", "finish", "abort", "again"]),
        st.integers(0, 9),
        st.integers(1, 900),
    ),
    max_size=60,
)


@given(events)
def test_the_ledger_is_that_of_a_naive_twin(made: list[tuple[str, int, int]]) -> None:
    module = played.fake_core_client()
    install(module, "0.33.0", QUIET)
    engine = Engine(module, ranks=3, capacity=4000, batch=3)
    twin: dict[str, tuple[int, int]] = {}
    for n, (what, k, size) in enumerate(made):
        name = f"r{k}"
        if what in ("add", "pin"):
            if name in twin or name in engine.client.reqs_in_flight:
                continue
            rank = engine.add(name, size, pin=n % 3 if what == "pin" else None)
            twin[name] = (rank, size)
        elif what == "tokens":
            engine.step({name: size % 5})
            if name in twin:
                twin[name] = (twin[name][0], twin[name][1] + size % 5)
        elif what == "finish":
            engine.step({name: 1}, {name: STOP})
            twin.pop(name, None)
        elif what == "abort":
            engine.abort(name)
            twin.pop(name, None)
        else:
            engine.step({}, {name: played.FinishReason.ABORT})
            twin.pop(name, None)
        batch, context = np.zeros(3, int), np.zeros(3, int)
        for rank, tokens in twin.values():
            batch[rank] += 1
            context[rank] += tokens
        assert engine.own() == (batch.tolist(), context.tolist())
    engine.step({}, dict.fromkeys(list(engine.client.reqs_in_flight), STOP))
    assert engine.own() == ([0] * 3, [0] * 3)
    assert engine.book.router.integrity().sound
    assert engine.book.leases == 0


def test_several_front_ends_see_each_other(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played.ClientBase, "__init__", _one_address(played.ClientBase.__init__))
    a = Engine(module, ranks=4, client_count=2, client_index=0)
    b = Engine(module, ranks=4, client_count=2, client_index=1)
    chosen = [(a if i % 2 else b).add(f"r{i}", 1000) for i in range(8)]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2, 3, 3]
    a.step({"r1": 50}), b.step({"r0": 100})
    total: Ints = np.sum([e.book.own()[1] for e in (a, b)], axis=0)
    assert total.sum() == 8150
    assert b.add("next", 1) == int(np.argmin(total))
    a.step({}, dict.fromkeys(["r1", "r3", "r5", "r7"], STOP))
    assert a.own() == ([0] * 4, [0] * 4)


def _one_address(begin: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        begin(self, *args, **kwargs)
        self.stats_update_address = "ipc:///test-of-several"

    return __init__


# -- whether it goes in ----------------------------------------------------------------------------------------------


def test_versions_it_was_not_run_on_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    module = played.fake_core_client()
    plain = module.DPLBAsyncMPClient.get_core_engine_for_request
    assert not install(module, "0.34.1", QUIET)
    assert module.DPLBAsyncMPClient.get_core_engine_for_request is plain
    (line,) = [record.message for record in caplog.records]
    assert "vLLM 0.34.1: it was run on 0.32.0, 0.33.0 only; vLLM keeps its own balancer" in line
    assert install(module, "0.34.1", Options(any_version=True))
    assert install(module, "0.34.1", QUIET), "it is there already"


def test_a_vllm_that_lacks_something_is_refused_whatever_its_version(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = played.fake_core_client()
    del module.DPLBAsyncMPClient.abort_requests_async
    assert not install(module, "0.33.0", Options(any_version=True))
    assert "has no abort_requests_async" in caplog.text
    empty = ModuleType("empty")
    assert lacks(empty) == "it has no DPLBAsyncMPClient"


def test_local_builds_count_as_their_version() -> None:
    assert install(played.fake_core_client(), "0.32.0+cpu", QUIET)


def test_a_policy_there_is_not_leaves_vllm_alone(caplog: pytest.LogCaptureFixture) -> None:
    module = played.fake_core_client()
    assert install(module, "0.33.0", Options(policy="least_tokns"))
    engine = Engine(module)
    assert engine.client._equipoise is None
    assert "least_tokens" in caplog.text
    engine.add("a", 100)
    engine.step({"a": 1}, {"a": STOP})
    engine.abort("a")


def test_nothing_happens_unasked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("EQUIPOISE_VLLM", raising=False)
    vllm.register()
    monkeypatch.setenv("EQUIPOISE_VLLM", "0")
    vllm.register()
    assert not caplog.records


def test_what_is_asked_wrongly_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("EQUIPOISE_VLLM", "yes"), ("EQUIPOISE_POLCY", "brh")):
        monkeypatch.setenv(name, value)
        vllm.register()
        monkeypatch.setenv("EQUIPOISE_VLLM", "1")
    assert "EQUIPOISE_VLLM: 'yes'; must be 0 or 1" in caplog.text
    assert "did you mean EQUIPOISE_POLICY?" in caplog.text


def test_it_says_what_it_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vllm.equipoise")
    module = played.fake_core_client()
    install(module, "0.33.0", Options(policy="least_tokens", log_s=1e-9))
    engine = Engine(module, ranks=2)
    engine.add("a", 100)
    assert (
        "policy least_tokens, cost h200, 2 ranks in lock-step, 50000 tokens and 64 requests a rank"
        in caplog.text
    )
    assert "1 policy; now on the ranks: 0 to 1 requests, 0 to 100 tokens" in caplog.text


def test_the_decision_log_is_a_trace(tmp_path: Any) -> None:
    from equipoise.traces import read

    module = played.fake_core_client()
    install(module, "0.33.0", Options(decisions=str(tmp_path / "log.jsonl"), shadows=("round_robin",)))
    engine = Engine(module)
    for i in range(3):
        engine.add(f"r{i}", 100 + i)
    engine.step(dict.fromkeys(["r0", "r1", "r2"], 4), dict.fromkeys(["r0", "r1", "r2"], STOP))
    trace = read(tmp_path / "log.jsonl")
    assert sorted(trace.context_tokens.tolist()) == [100, 101, 102]
    assert trace.output_tokens.tolist() == [4] * 3


@pytest.mark.parametrize("wheel", WHEELS)
def test_the_fake_is_like_the_real_one(wheel: Any) -> None:
    real, version = played.real_core_client(wheel)
    assert version in RUN_ON
    assert lacks(real) == ""
    fake = played.fake_core_client()
    names = ("__init__", *vllm.METHODS)
    assert played.signatures(fake.DPLBAsyncMPClient, names) == played.signatures(
        real.DPLBAsyncMPClient, names
    )
    fields = real.EngineCoreRequest.__struct_fields__
    assert [f for f in fields if f in fake.EngineCoreRequest.__struct_fields__][:10] == list(
        fake.EngineCoreRequest.__struct_fields__
    )[:10]


def test_an_engine_that_cannot_be_imported_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EQUIPOISE_VLLM", "1")
    vllm.register()  # there is none here
    assert "stays out of vLLM: No module named 'vllm'" in caplog.text
