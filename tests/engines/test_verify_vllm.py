"""The vLLM adapter against what vLLM's own schedulers did: `scripts/record_vllm_verify.py`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from equipoise.control import VerifyPrice
from equipoise.cost import StepCost, Term, load
from equipoise.engines.verify import vllm
from equipoise.errors import InputError

RECORDED = json.loads((Path(__file__).parent / "fixtures" / "vllm-verify.json").read_text())
KINDS = pytest.mark.parametrize(("kind", "asynchronous"), [("Scheduler", False), ("AsyncScheduler", True)])


def price() -> VerifyPrice:
    fixed, per_query, per_100k = RECORDED["price"]
    terms = (Term("attention", 1.0, 1.0, per_100k), Term("ffn", 1.0, per_query))
    return VerifyPrice(StepCost("test", terms, fixed))


def request(name: str, drafts: list[int], computed: int = 100, tokens: int = 101, chunk: bool = False) -> Any:
    return SimpleNamespace(
        request_id=name,
        spec_token_ids=drafts,
        num_computed_tokens=computed,
        num_tokens=tokens,
        is_prefill_chunk=chunk,
    )


def test_the_fixture_is_of_a_version_that_the_adapter_names() -> None:
    assert RECORDED["vllm"] in vllm.RUN_ON


@KINDS
def test_the_same_shapes_lead_to_what_the_real_scheduler_scheduled(kind: str, asynchronous: bool) -> None:
    """Step by step: drafts are cut as recorded, and the next plan is the recorded one."""
    drafts = RECORDED["drafts"]
    controls = [vllm.SchedulerControl(price(), drafts, asynchronous) for _ in RECORDED[kind]["ranks"]]
    by_step = [{shape["step"]: shape for shape in rank} for rank in RECORDED[kind]["ranks"]]
    in_flight: list[list[dict[str, Any]]] = [[] for _ in controls]
    cut = 0
    for step, plan in enumerate(RECORDED[kind]["plans"]):
        messages = []
        for control, shapes, flight, running in zip(
            controls, by_step, in_flight, plan["running"], strict=True
        ):
            if step in shapes:
                shape = shapes[step]
                flight.append(shape)
                # one list for all, as vLLM's placeholders: it must not be cut in place
                placeholders = [-1] * drafts
                before = shape["spec_token_ids_before"]
                live = [
                    request(name, placeholders[:n] if n < drafts else placeholders)
                    for name, n in before.items()
                ]
                cut += control.trim(live)
                assert len(placeholders) == drafts
                for one in live:
                    if one.request_id not in shape["num_scheduled_tokens"]:
                        continue  # asynchronously: all it may still emit is in flight
                    given = shape["scheduled_spec_decode_tokens"].get(one.request_id, [])
                    assert len(one.spec_token_ids) == len(given), (step, one.request_id)
                for name, tokens in shape["num_scheduled_tokens"].items():
                    if before.get(name):
                        given = shape["scheduled_spec_decode_tokens"].get(name, [])
                        assert tokens == 1 + len(given)
                        blocks = shape["num_computed_tokens_before"][name] + tokens
                        assert shape["blocks"][name] >= -(-blocks // RECORDED["block_size"])
            ahead = asynchronous and bool(running)
            if len(flight) > ahead:
                done = flight.pop(0)
                rows = {name: i for i, name in enumerate(done["num_scheduled_tokens"])}
                control.learn(
                    done["scheduled_spec_decode_tokens"],
                    done["sampled_token_ids"],
                    rows,
                    done["finished_req_ids"],
                )
            messages.append(control.publish([request(n, [], c, t, p) for n, c, t, p in running]))
        for control in controls:
            control.agree(messages)
            found = control.control.plan
            assert found is not None
            assert found.cap_queries == plan["cap_queries"]
            assert (found.observed_step, found.for_step) == (plan["observed_step"], plan["for_step"])
            assert found.for_step - found.observed_step == (2 if asynchronous else 1)
    assert cut > 0


@KINDS
def test_lengths_do_not_depend_on_the_drafts_at_hand(kind: str, asynchronous: bool) -> None:
    """Two ranks with the same past and other drafts verify the same."""
    found = []
    for drafts in ([1, 2, 3], [7, 8, 9]):
        control = vllm.SchedulerControl(price(), 3, asynchronous)
        for _ in range(6):
            live = [request("a", drafts, 4000, 4001), request("b", drafts, 10, 11)]
            control.trim(live)
            verified = {r.request_id: r.spec_token_ids for r in live}
            control.learn(verified, [[5], [5, 6]], {"a": 0, "b": 1})
            control.agree([control.publish(live), control.control.observe(0, [], [], [])][:1])
        live = [request("a", drafts, 4000, 4001), request("b", drafts, 10, 11)]
        control.trim(live)
        found.append([len(r.spec_token_ids) for r in live])
        assert all(r.spec_token_ids == drafts[: len(r.spec_token_ids)] for r in live)
    assert found[0] == found[1]


class FakeScheduler:
    """The methods of vLLM's that the adapter stands on."""

    num_spec_tokens = 3

    def __init__(self) -> None:
        self.running: list[Any] = []
        self.seen: list[Any] = []

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return [len(r.spec_token_ids) for r in self.running]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.seen.append(model_runner_output)
        return "outputs"

    def _update_after_schedule(self, scheduler_output: Any) -> None: ...


class Without(FakeScheduler):
    num_spec_tokens = 0


def output(verified: dict[str, list[int]], sampled: Any) -> tuple[Any, Any]:
    scheduled = SimpleNamespace(scheduled_spec_decode_tokens=verified, finished_req_ids={"gone"})
    rows = {name: i for i, name in enumerate(verified)}
    return scheduled, SimpleNamespace(sampled_token_ids=sampled, req_id_to_index=rows)


def test_a_scheduler_class_trims_and_learns() -> None:
    scheduler = vllm.scheduler_class(FakeScheduler, price(), "0.32.0")()
    control = scheduler.equipoise
    scheduler.running = [request("a", [1, 2, 3], 90_000, 90_001), request("b", [1, 2, 3], 10, 11)]
    assert scheduler.schedule() == [3, 3]  # no plan yet
    assert (
        scheduler.update_from_output(*output({"a": [1, 2, 3], "b": [1, 2, 3]}, [[4], [1, 2, 3, 4]]))
        == "outputs"
    )
    control.agree([control.publish(scheduler.running)])
    lengths = control.control.lengths(1)
    assert set(lengths) == {"a", "b"}
    assert lengths["a"] < 3
    assert scheduler.schedule() == [lengths["a"], lengths["b"]]
    assert vllm.scheduler_class(Without, price(), "0.32.0")().equipoise is None


def test_what_goes_wrong_leaves_the_engine_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = vllm.scheduler_class(FakeScheduler, price(), "0.32.0")()
    control = scheduler.equipoise
    scheduler.running = [request("a", [1, 2, 3])]
    with caplog.at_level(logging.ERROR, "vllm.equipoise"):
        assert scheduler.update_from_output(SimpleNamespace(), SimpleNamespace()) == "outputs"
        control.agree([b"damaged", control.publish(scheduler.running)])
        message = control.publish([SimpleNamespace(is_prefill_chunk=False)])
        assert len(message) == control.control.message_bytes  # collectives want their size
    assert "leaves" in caplog.text
    assert scheduler.schedule() == [3]
    # nothing of this rank is in the plan any more, and the others go on
    control.agree([control.publish(scheduler.running)])
    assert control.control.lengths(control.step) == {}


def test_versions_and_missing_parts_are_refused() -> None:
    with pytest.raises(InputError, match=r"vLLM 0.99.0 was never run with this adapter; use 0.32.0"):
        vllm.scheduler_class(FakeScheduler, price(), "0.99.0")
    assert vllm.scheduler_class(FakeScheduler, price(), "0.99.0", any_version=True)

    class Less:
        def schedule(self) -> None: ...

    with pytest.raises(InputError, match="Less has no update_from_output"):
        vllm.scheduler_class(Less, price(), "0.32.0")


def test_a_core_exchanges_after_every_step_of_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    board: dict[int, bytes] = {}

    class Core:
        cores: ClassVar[list[Any]] = []

        def __init__(self, rank: int, running: list[Any]) -> None:
            self.dp_group, self.steps = rank, 0
            self.scheduler = SimpleNamespace(
                running=running, equipoise=vllm.SchedulerControl(VerifyPrice(load("h200")), 3)
            )

        def _has_global_unfinished_reqs(self, local_unfinished: bool) -> bool:
            self.steps += 1
            return local_unfinished

    def gather_over(rank: int) -> Any:
        idle = vllm.SchedulerControl(VerifyPrice(load("h200")), 3)

        def gather(message: bytes) -> list[bytes]:
            board[rank] = message
            return [message, idle.publish([])] if rank == 0 else [idle.publish([]), message]

        return gather

    monkeypatch.setattr(vllm, "gather_over", gather_over)
    cores = [vllm.with_exchange(Core)(0, [request("a", [1, 2, 3])]), vllm.with_exchange(Core)(1, [])]
    for step in range(3):
        assert [core._has_global_unfinished_reqs(rank == 0) for rank, core in enumerate(cores)] == [
            True,
            False,
        ]
        assert [core.scheduler.equipoise.control.plan.for_step for core in cores] == [step + 1] * 2
    assert len(board) == 2
    assert set(cores[0].scheduler.equipoise.control.lengths(3)) == {"a"}
