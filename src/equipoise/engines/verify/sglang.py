"""SGLang: a plan of all ranks in place of each rank's own verify budget, by two hooks around its DSpark planner.

What SGLang 0.5.23 does in a step (``sglang.srt.speculative.dspark_components.dspark_planner``), and where this goes
in:

* `Scheduler.run_batch` calls `DSparkVerifyPlanner.prepare_verify_budget` on every rank before it launches the forward
  pass, idle ranks too. It takes the confidences of an earlier step (`FutureMap.resolve_confidence_cpu`), finds the
  budget of greatest tokens per second on this rank's own profile, and gathers one number of each rank: the query
  tokens it wants. All then run the graph of the largest. **Here**: around it, the ranks' curves are gathered the same
  way, and the budget and the graph are those of the common plan.
* `_schedule_verify_lens` gives the budget to the drafts with the greatest survivals, those of this very step.
  **Here**: the plan's own lengths, by survival per cost, from the earlier step's survivals alone.

SGLang must schedule ahead (its default, not ``--disable-overlap-schedule``): without it, it decides by the
confidences of the very drafts it is about to verify, which this refuses to.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from equipoise.control import VerifyPrice
from equipoise.engines.verify.gather import Gather
from equipoise.engines.verify.rank import RankControl, survival_of
from equipoise.engines.verify.versions import check_version, lacks
from equipoise.types import Floats

__all__ = ["RUN_ON", "PlannerControl", "install"]

_log = logging.getLogger("sglang.equipoise")

RUN_ON = {"0.5.23": "the source of its planner on a CPU, the engine around it played"}
"""Versions of SGLang this was run on, and how."""

MODULE = "sglang.srt.speculative.dspark_components.dspark_planner"
PLANNER = "DSparkVerifyPlanner"
METHODS = {
    "prepare_verify_budget": ("batch", "future_map"),
    "_schedule_verify_lens": ("req_pool_indices", "device", "confidence", "budget"),
}
MOST_ERRORS = 3
WANTS = struct.Struct("<q")
"""Behind a rank's message: query tokens it runs whatever the plan says; 0 where it keeps to the plan."""


class PlannerControl:
    """What stands between one rank's DSpark planner and the plan.

    Whatever goes wrong in here is logged, and the step runs as SGLang would have run it; after three times for good.

    Parameters
    ----------
    price : VerifyPrice
        Graph sizes are SGLang's captured token counts.
    gamma : int
        Drafts of a request, SGLang's ``gamma``.
    gather : callable
        Hands over bytes, the same number on each rank, and returns all ranks' in order.
    lag : int
        Steps between the confidences that `resolve_confidence_cpu` hands out and the step about to run: at least 1.
    """

    def __init__(self, price: VerifyPrice, gamma: int, gather: Gather, lag: int = 1) -> None:
        self.control = RankControl(price, gamma, horizon=lag)
        self.step = lag
        """The step about to run; all ranks count alike."""
        self._gather, self._errors = gather, 0
        self._lengths: list[int] | None = None

    def prepare(self, original: Callable[..., None], planner: Any, batch: Any, future_map: Any) -> None:
        """Around `prepare_verify_budget`: SGLang's budget first, for its own books, then the plan's."""
        original(planner, batch, future_map)
        self._lengths = None
        observed, wants = self.step - self.control.horizon, 0
        try:
            rows, context, survival = self._rank(planner, batch, future_map)
            message = self.control.observe(observed, rows, context, survival)
        except Exception as error:
            self._failed(error)
            rows, wants = [], int(batch.spec_verify_tier_num_tokens)
            message = self.control.observe(observed, [], [], [])
        gathered = self._gather(message + WANTS.pack(wants))  # always: the other ranks wait for it
        self.step += 1
        try:
            plan = self.control.agree([message[: -WANTS.size] for message in gathered])
        except Exception as error:  # all ranks have the same bytes, so it goes wrong on all of them
            self._failed(error)
            return
        if rows:
            lengths = self.control.lengths(self.step - 1)
            self._lengths = [lengths[row] for row in rows]
            batch.spec_info.verify_token_budget = sum(self._lengths)
            batch.spec_verify_tier_num_tokens = len(rows) + sum(self._lengths)
        tiers = batch.global_spec_verify_tier_num_tokens
        if tiers is not None and min(tiers) >= 0:  # the graph that holds every rank's part of the plan
            others = [WANTS.unpack(message[-WANTS.size :])[0] for message in gathered]
            batch.global_spec_verify_tier_num_tokens = [max(plan.cap_queries, *others)] * len(gathered)

    def lengths(self, original: Callable[..., Any], planner: Any, **given: Any) -> Any:
        """Around `_schedule_verify_lens`: the plan's lengths, one more for the token every request gets."""
        found = original(planner, **given)
        if self._lengths is None or found is None or found.shape[0] != len(self._lengths):
            return found
        return found.new_tensor([1 + length for length in self._lengths])

    def _rank(self, planner: Any, batch: Any, future_map: Any) -> tuple[list[int], list[int], Floats]:
        """Requests, contexts and survivals of an earlier step; none where this rank decodes nothing."""
        none = np.zeros((0, self.control.drafts))
        decodes = (
            batch.spec_info is not None
            and not batch.forward_mode.is_extend()
            and not batch.is_extend_in_batch
        )
        if decodes and self._errors >= MOST_ERRORS:
            raise RuntimeError(f"failed {self._errors} times, and leaves this rank alone")
        resolved = future_map.resolve_confidence_cpu(batch) if decodes else None
        if resolved is None:
            return [], [], none
        rows = batch.req_pool_indices_cpu
        current = np.asarray(planner.model_runner.req_to_token_pool.req_generation[rows])
        survival = survival_of(np.asarray(resolved.confidence, dtype=np.float64))
        # a row that another request had then says nothing: verify all, as SGLang does
        same = (current >= 1) & (np.asarray(resolved.generation) == current)
        survival[~same] = 1.0
        return rows.tolist(), batch.seq_lens_cpu.tolist(), survival

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        if self._errors <= MOST_ERRORS:
            _log.exception("equipoise: %s; SGLang's own budget", error, exc_info=error)


def install(
    module: ModuleType, hooks: ModuleType, version: str, control: PlannerControl, *, any_version: bool = False
) -> None:
    """Register the hooks; from a plug-in of the group ``sglang.srt.plugins``, before SGLang applies them.

    Parameters
    ----------
    module : module
        ``sglang.srt.speculative.dspark_components.dspark_planner``.
    hooks : module
        ``sglang.srt.plugins.hook_registry``.
    version : str
        ``sglang.__version__``.
    control : PlannerControl
    any_version : bool
        Go into a version it was never run on, if all it relies on is there.

    Raises
    ------
    InputError
        A version it was never run on, or one that lacks something.
    """
    check_version(
        "SGLang", version, RUN_ON, lacks(getattr(module, PLANNER, None), PLANNER, METHODS), any_version
    )
    for name, hook in (
        ("prepare_verify_budget", control.prepare),
        ("_schedule_verify_lens", control.lengths),
    ):
        hooks.HookRegistry.register(f"{MODULE}.{PLANNER}.{name}", hook, hooks.HookType.AROUND)
