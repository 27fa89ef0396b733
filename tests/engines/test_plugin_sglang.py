"""The plug-in of SGLang: a policy on what ranks have published and what was sent since."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import plugin_engines as played
import pytest

from equipoise.engines.plugins import Options, sglang
from equipoise.engines.plugins.sglang import RUN_ON, install, lacks

QUIET = Options(policy="least_tokens", log_s=0.0)
WHEELS = played.wheels("EQUIPOISE_TEST_SGLANG", "sglang==0.5.23")


class Engine:
    """A controller, its hooks in place, on a wall clock of its own."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        wheel: Any = None,
        *,
        ranks: int = 4,
        asked: Options = QUIET,
        attn_dp: bool = True,
        method: str = "total_tokens",
    ) -> None:
        state = played.parallel(ranks, attn_dp, method)
        if wheel is None:
            self.module, self.hooks = played.fake_controller(state), played.fake_hooks()
        else:
            self.module, self.hooks = played.real_controller(wheel, state)[0], played.real_hooks(wheel)
        played.put_in_place(monkeypatch, self.module)
        assert install(self.module, self.hooks, "0.5.23", asked)
        self.hooks.HookRegistry.apply_hooks()
        self.controller = self.module.DataParallelController(
            None, SimpleNamespace(scheduler_input_ipc_name=""), None
        )
        self.now_s = 1000.0
        if self.seat is not None:
            self.seat._wall = lambda: self.now_s

    @property
    def seat(self) -> Any:
        return self.controller._equipoise

    def send(self, name: str, prompt: int, pin: int | None = None, **fields: Any) -> int:
        req = SimpleNamespace(
            rid=name, input_ids=[1] * prompt, routed_dp_rank=pin, sampling_params=SimpleNamespace(max_new_tokens=50),
            **fields,
        )  # fmt: skip
        self.controller.total_tokens_scheduler(req)
        socket, sent = self.module.sent[-1]
        assert sent is req
        assert req.routed_dp_rank == pin, "the rank is not told more than its client said"
        return self.controller.workers.index(socket)

    def publish(self, rank: int, batch: int, tokens: int, at_s: float, waiting: int = 0) -> None:
        load = SimpleNamespace(
            dp_rank=rank, timestamp=at_s, num_running_reqs=batch, num_waiting_reqs=waiting, num_total_tokens=tokens,
            max_total_num_tokens=100_000, max_running_requests=64,
        )  # fmt: skip
        self.controller.dp_budget.update_budget([load])

    def picture(self) -> tuple[list[int], list[int]]:
        view = self.seat.book.router.view()
        return view.batch.tolist(), view.context_tokens.tolist()


@pytest.fixture(params=[pytest.param(None, id="fake"), *WHEELS])
def wheel(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_what_was_sent_counts_until_it_is_published(monkeypatch: pytest.MonkeyPatch, wheel: Any) -> None:
    engine = Engine(monkeypatch, wheel, ranks=2)
    engine.publish(0, 3, 900, 999.97)
    engine.publish(1, 1, 500, 999.97)
    assert engine.send("a", 1000) == 1
    assert engine.picture() == ([3, 2], [900, 1500])
    engine.publish(1, 1, 501, 999.99)  # from before it was sent
    assert engine.picture() == ([3, 2], [900, 1501])
    engine.publish(1, 1, 502, 1000.005)  # under way: the rank had begun its step before it came
    assert engine.picture() == ([3, 2], [900, 1502])
    engine.publish(1, 2, 1503, 1000.025)  # it has looked since
    assert engine.picture() == ([3, 2], [900, 1503])
    assert engine.seat.book.leases == 0


def test_a_rank_that_was_silent_is_given_the_settling_time_only(
    monkeypatch: pytest.MonkeyPatch, wheel: Any
) -> None:
    engine = Engine(monkeypatch, wheel, ranks=2)
    engine.publish(0, 0, 0, 900.0)
    engine.send("a", 1000)
    engine.publish(0, 1, 1000, 1000.04)
    assert engine.seat.book.leases == 1
    engine.publish(0, 1, 1001, 1000.1)
    assert engine.seat.book.leases == 0
    assert engine.picture()[1][0] == 1001


def test_old_and_repeated_snapshots_change_nothing(monkeypatch: pytest.MonkeyPatch, wheel: Any) -> None:
    engine = Engine(monkeypatch, wheel)
    engine.publish(2, 5, 5000, 1000.0)
    engine.publish(2, 1, 1, 1000.0)
    engine.publish(2, 1, 1, 990.0)
    assert engine.picture() == ([0, 0, 5, 0], [0, 0, 5000, 0])


def test_a_burst_between_two_snapshots_spreads(monkeypatch: pytest.MonkeyPatch, wheel: Any) -> None:
    engine = Engine(monkeypatch, wheel)
    for rank in range(4):
        engine.publish(rank, rank, 100 * rank, 1000.0)
    chosen = [engine.send(f"r{i}", 200) for i in range(13)]
    assert sorted(chosen.count(rank) for rank in range(4)) == [2, 3, 4, 4]
    assert max(engine.picture()[1]) - min(engine.picture()[1]) <= 200


def test_pinned_requests_go_where_they_say_and_are_counted(
    monkeypatch: pytest.MonkeyPatch, wheel: Any
) -> None:
    engine = Engine(monkeypatch, wheel)
    assert engine.send("p", 700, pin=3) == 3
    assert engine.picture() == ([0, 0, 0, 1], [0, 0, 0, 700])
    with pytest.raises(ValueError, match="DP rank 9 is not active"):
        engine.send("q", 700, pin=9)
    assert engine.seat.book.leases == 1


def test_ranks_that_are_not_active_get_nothing(monkeypatch: pytest.MonkeyPatch, wheel: Any) -> None:
    engine = Engine(monkeypatch, wheel)
    engine.controller._active_workers = [0, 2, 3]
    engine.controller.status[3] = False
    assert {engine.send(f"r{i}", 100) for i in range(8)} == {0, 2}
    engine.controller._active_workers = [0, 1, 2, 3]
    engine.controller.status[3] = True
    assert {engine.send(f"s{i}", 100) for i in range(8)} == {1, 3}


def test_what_fits_nowhere_goes_where_most_room_is(monkeypatch: pytest.MonkeyPatch, wheel: Any) -> None:
    engine = Engine(monkeypatch, wheel, ranks=2)
    engine.publish(0, 1, 99_000, 1000.0)
    engine.publish(1, 1, 98_000, 1000.0)
    assert engine.send("r", 5000) == 1
    assert engine.seat.book.counts["overflow"] == 1


def test_ranks_of_their_own_step(monkeypatch: pytest.MonkeyPatch, wheel: Any) -> None:
    engine = Engine(monkeypatch, wheel, attn_dp=False)
    assert len(engine.seat.book.router.instances) == 4
    assert sorted(engine.send(f"r{i}", 100) for i in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]
    engine.controller._active_workers = [1]
    assert {engine.send(f"s{i}", 100) for i in range(3)} == {1}


def test_prompts_that_are_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch)
    req = SimpleNamespace(rid="e", input_ids=None, input_embeds=[[0.0]] * 12, routed_dp_rank=None)
    engine.controller.total_tokens_scheduler(req)
    assert sum(engine.picture()[1]) == 12


def test_an_error_of_ours_costs_nobody_a_request(
    monkeypatch: pytest.MonkeyPatch, wheel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(monkeypatch, wheel)

    def fails(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(engine.seat.book, "place", fails)
    for i in range(5):
        engine.send(f"r{i}", 100)
    assert len(engine.module.sent) == 5
    assert engine.seat.book is None
    assert "leaves: SGLang keeps its own balancer" in caplog.text
    engine.publish(0, 1, 1, 1001.0)


def test_its_own_budget_is_kept_for_it(monkeypatch: pytest.MonkeyPatch, wheel: Any) -> None:
    engine = Engine(monkeypatch, wheel, ranks=2)
    rank = engine.send("a", 300)
    assert engine.controller.dp_budget.total_tokens[rank] == 300
    assert engine.controller.dp_budget.total_requests[rank] == 1


# -- whether it goes in ----------------------------------------------------------------------------------------------


def test_another_method_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(monkeypatch, method="round_robin")
    assert engine.seat is None
    assert "give --load-balance-method total_tokens" in caplog.text


def test_versions_it_was_not_run_on_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    module, hooks = played.fake_controller(played.parallel(2, True, "total_tokens")), played.fake_hooks()
    assert not install(module, hooks, "0.5.24", QUIET)
    assert not hooks.HookRegistry.found
    (line,) = [record.message for record in caplog.records]
    assert "SGLang 0.5.24: it was run on 0.5.23 only; SGLang keeps its own balancer" in line
    del module.DPBudget.update_budget
    assert not install(module, hooks, "0.5.23", Options(any_version=True))
    assert "DPBudget has no update_budget" in caplog.text
    assert lacks(ModuleType("empty")) == "it has no sock_send"


def test_a_policy_there_is_not_leaves_sglang_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(monkeypatch, asked=Options(cost="h2000"))
    assert engine.seat is None
    assert "h200" in caplog.text
    engine.send("a", 100)


def test_nothing_happens_unasked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("EQUIPOISE_SGLANG", raising=False)
    sglang.register()
    assert not caplog.records
    monkeypatch.setenv("EQUIPOISE_SGLANG", "2")
    sglang.register()
    assert "EQUIPOISE_SGLANG: '2'; must be 0 or 1" in caplog.text


@pytest.mark.parametrize("real", WHEELS)
def test_the_fake_is_like_the_real_one(real: Any) -> None:
    state = played.parallel(2, True, "total_tokens")
    module, version = played.real_controller(real, state)
    assert version in RUN_ON
    assert lacks(module) == ""
    fake = played.fake_controller(state)
    for owner in ("DataParallelController", "DPBudget"):
        names = [name for who, name in sglang.METHODS if who == owner]
        assert played.signatures(getattr(fake, owner), names) == played.signatures(
            getattr(module, owner), names
        )
    hooks = played.real_hooks(real)
    assert played.signatures(hooks.HookRegistry, ["register", "apply_hooks"]) == played.signatures(
        played.fake_hooks().HookRegistry, ["register", "apply_hooks"]
    )
    snapshot = played.source(real, "sglang/srt/managers/load_snapshot.py")
    for field in ("timestamp", "dp_rank", "num_running_reqs", "num_waiting_reqs", "num_total_tokens"):
        assert f"    {field}: " in snapshot


def test_an_engine_that_cannot_be_imported_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EQUIPOISE_SGLANG", "1")
    sglang.register()  # there is none here
    assert "stays out of SGLang: No module named 'sglang'" in caplog.text
