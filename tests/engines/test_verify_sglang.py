"""The SGLang adapter against what SGLang's own planner did (`scripts/record_sglang_verify.py`)."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.control import VerifyPrice
from equipoise.cost import load
from equipoise.engines.verify import read_dspark_log, sglang
from equipoise.errors import InputError

RECORDED = json.loads((Path(__file__).parent / "fixtures" / "sglang-verify.json").read_text())
GAMMA, GRAPHS = RECORDED["gamma"], RECORDED["graphs"]


def price() -> VerifyPrice:
    return VerifyPrice(load("h200"), GRAPHS)


class Tensor(np.ndarray):
    """As much of a torch tensor as the adapter asks for."""

    def new_tensor(self, values: list[int]) -> Any:
        return np.array(values, dtype=self.dtype).view(Tensor)


def tensor(values: Any) -> Any:
    return np.array(values).view(Tensor)


class Board:
    """A gather between two threads."""

    def __init__(self) -> None:
        self.said, self.barrier = [b"", b""], threading.Barrier(2)

    def of(self, rank: int) -> Any:
        def gather(message: bytes) -> list[bytes]:
            self.said[rank] = message
            self.barrier.wait(10)
            found = list(self.said)
            self.barrier.wait(10)
            return found

        return gather


def batch_of(step: dict[str, Any]) -> tuple[Any, Any, Any]:
    """A planner, a batch and a future map as recorded."""
    rows = tensor(step["req_pool_indices"])
    generations = tensor([1] * 16)
    generations[rows] = step["current_generation"]
    planner = SimpleNamespace(
        model_runner=SimpleNamespace(req_to_token_pool=SimpleNamespace(req_generation=generations))
    )
    batch = SimpleNamespace(
        spec_info=SimpleNamespace(verify_token_budget=None),
        forward_mode=SimpleNamespace(is_extend=lambda: False),
        is_extend_in_batch=False,
        req_pool_indices_cpu=rows,
        seq_lens_cpu=tensor(step["seq_lens"]),
        spec_verify_tier_num_tokens=-1,
        global_spec_verify_tier_num_tokens=None,
    )
    resolved = SimpleNamespace(
        confidence=tensor(np.array(step["lagged_confidence"], dtype=np.float32)),
        generation=tensor(step["lagged_generation"]),
    )
    return planner, batch, SimpleNamespace(resolve_confidence_cpu=lambda _: resolved)


def sglangs_own(step: dict[str, Any]) -> Any:
    """What SGLang's own method left in the batch."""

    def original(planner: Any, batch: Any, future_map: Any) -> None:
        batch.spec_info.verify_token_budget = step["verify_token_budget"]
        batch.spec_verify_tier_num_tokens = step["spec_verify_tier_num_tokens"]
        batch.global_spec_verify_tier_num_tokens = list(step["global_spec_verify_tier_num_tokens"])

    return original


def test_the_fixture_is_of_a_version_that_the_adapter_names() -> None:
    assert RECORDED["sglang"] in sglang.RUN_ON


def test_the_same_shapes_lead_to_what_the_real_planner_laid_out() -> None:
    board, failed = Board(), []

    def run(rank: int) -> None:
        try:
            control = sglang.PlannerControl(price(), GAMMA, board.of(rank))
            for alone, planned in zip(RECORDED["alone"][rank], RECORDED["planned"][rank], strict=True):
                planner, batch, future_map = batch_of(alone)
                control.prepare(sglangs_own(alone), planner, batch, future_map)
                lens = control.lengths(
                    lambda _, **given: tensor([9] * len(given["budget"])), planner, budget=alone["seq_lens"]
                )
                assert lens.tolist() == planned["verify_lens"]
                assert batch.spec_info.verify_token_budget == planned["verify_token_budget"]
                assert batch.spec_verify_tier_num_tokens == planned["spec_verify_tier_num_tokens"]
                assert (
                    batch.global_spec_verify_tier_num_tokens == planned["global_spec_verify_tier_num_tokens"]
                )
                assert sum(planned["verify_lens"]) <= planned["graph_num_tokens"]
        except BaseException as error:
            failed.append(error)
            board.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_the_heavy_rank_verifies_less_and_both_run_one_graph() -> None:
    alone, planned = RECORDED["alone"], RECORDED["planned"]
    for step in range(len(planned[0])):
        assert planned[0][step]["graph_num_tokens"] == planned[1][step]["graph_num_tokens"]
    drafts = [[sum(s["verify_lens"]) - len(s["verify_lens"]) for s in rank] for rank in planned]
    own = [[sum(s["verify_lens"]) - len(s["verify_lens"]) for s in rank] for rank in alone]
    assert sum(drafts[0]) < sum(own[0])  # rank 0 has the long contexts


def test_the_log_is_what_the_planner_really_writes() -> None:
    for rank in RECORDED["alone"]:
        steps = read_dspark_log(line for step in rank for line in step["log"])
        assert len(steps) == len(rank)
        for read, step in zip(steps, rank, strict=True):
            assert read.requests.tolist() == step["req_pool_indices"]
            assert read.context_tokens.tolist() == step["seq_lens"]
            assert read.budget == step["verify_token_budget"]
            assert (1 + read.verified).tolist() == step["verify_lens"]


def one_rank(message: bytes) -> list[bytes]:
    return [message]


def test_lengths_do_not_depend_on_the_confidences_at_hand() -> None:
    step = RECORDED["alone"][0][1]
    found = []
    for live in (0.1, 0.9):
        control = sglang.PlannerControl(price(), GAMMA, one_rank)
        planner, batch, future_map = batch_of(step)
        control.prepare(sglangs_own(step), planner, batch, future_map)
        given = {"confidence": np.full((4, GAMMA), live), "budget": batch.spec_info.verify_token_budget}
        found.append(
            control.lengths(
                lambda _, **given: tensor([int(10 * given["confidence"][0, 0])] * 4), planner, **given
            )
        )
        # a plan serves its own step, once
        control.prepare(
            sglangs_own(step),
            planner,
            batch_of(step)[1],
            SimpleNamespace(resolve_confidence_cpu=lambda _: None),
        )
        assert control.lengths(lambda _, **given: "SGLang's own", planner, **given) == "SGLang's own"
    assert found[0].tolist() == found[1].tolist()
    with pytest.raises(InputError, match="may not depend on the drafts"):
        sglang.PlannerControl(price(), GAMMA, one_rank, lag=0)


def test_a_row_that_another_request_had_says_nothing() -> None:
    step = json.loads(json.dumps(RECORDED["alone"][0][1]))
    step["lagged_confidence"][0] = [0.01] * GAMMA
    lengths = []
    for generation in (1, 0):
        step["lagged_generation"][0] = generation
        control = sglang.PlannerControl(VerifyPrice(load("h200"), query_reads=0.0), GAMMA, one_rank)
        planner, batch, future_map = batch_of(step)
        control.prepare(sglangs_own(step), planner, batch, future_map)
        lengths.append(control.lengths(lambda _, **given: tensor([1] * 4), planner)[0])
    assert lengths[0] == 1 < lengths[1] == 1 + GAMMA


def test_what_goes_wrong_leaves_the_engine_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    step = RECORDED["alone"][0][1]
    said: list[bytes] = []

    def gather(message: bytes) -> list[bytes]:
        said.append(message)
        return [message]

    control = sglang.PlannerControl(price(), GAMMA, gather)
    broken = SimpleNamespace(resolve_confidence_cpu=lambda _: SimpleNamespace())
    with caplog.at_level(logging.ERROR, "sglang.equipoise"):
        for _ in range(5):
            planner, batch, _ = batch_of(step)
            control.prepare(sglangs_own(step), planner, batch, broken)
            assert batch.spec_info.verify_token_budget == step["verify_token_budget"]
            # all ranks run a graph that holds what this one verifies by itself
            assert max(batch.global_spec_verify_tier_num_tokens) >= step["spec_verify_tier_num_tokens"]
            assert control.lengths(lambda _, **given: "SGLang's own", planner) == "SGLang's own"
    assert len({len(message) for message in said}) == 1
    assert caplog.text.count("SGLang's own budget") == sglang.MOST_ERRORS


def test_a_prefill_step_is_an_idle_one() -> None:
    step = RECORDED["alone"][0][1]
    control = sglang.PlannerControl(price(), GAMMA, one_rank)
    planner, batch, future_map = batch_of(step)
    batch.is_extend_in_batch = True
    control.prepare(lambda *_: None, planner, batch, future_map)
    assert batch.spec_info.verify_token_budget is None
    assert batch.global_spec_verify_tier_num_tokens is None


class Planner:
    def prepare_verify_budget(self, batch: Any, future_map: Any) -> None: ...

    def _schedule_verify_lens(
        self, *, req_pool_indices: Any, prefix_lens: Any, device: Any, confidence: Any, budget: Any
    ) -> None: ...


def test_hooks_are_registered_for_a_version_it_was_run_on() -> None:
    registered: dict[str, tuple[Any, str]] = {}
    hooks: Any = SimpleNamespace(
        HookType=SimpleNamespace(AROUND="around"),
        HookRegistry=SimpleNamespace(
            register=lambda name, hook, kind: registered.update({name: (hook, kind)})
        ),
    )
    module: Any = SimpleNamespace(DSparkVerifyPlanner=Planner)
    control = sglang.PlannerControl(price(), GAMMA, one_rank)
    sglang.install(module, hooks, "0.5.23", control)
    assert {name.rpartition(".")[2] for name in registered} == {
        "prepare_verify_budget",
        "_schedule_verify_lens",
    }
    with pytest.raises(InputError, match=r"SGLang 0.6.0 was never run with this adapter; use 0.5.23"):
        sglang.install(module, hooks, "0.6.0", control)
    with pytest.raises(InputError, match="has no prepare_verify_budget"):
        sglang.install(SimpleNamespace(), hooks, "0.5.23", control)  # type: ignore[arg-type]
