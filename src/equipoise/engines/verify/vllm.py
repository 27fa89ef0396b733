"""vLLM: a scheduler class for ``--scheduler-cls`` that trims drafts to a plan of all ranks.

What vLLM 0.32 does in a step, and where this goes in:

* The drafts a request has wait in ``Request.spec_token_ids``. `Scheduler.schedule` takes what fits of them, since a
  request's new tokens are ``num_tokens_with_spec - num_computed_tokens``, and puts them into
  ``SchedulerOutput.scheduled_spec_decode_tokens``. **Here**: they are cut before `schedule` looks, so that token
  budget, KV blocks, placeholders and counts all follow by themselves. Under `AsyncScheduler` they are placeholders of
  -1, and the worker cuts its drafts to as many (`update_draft_token_ids_in_output`).
* `Scheduler.update_from_output` is told what was sampled: one token more than drafts were accepted. **Here**: that is
  what survivals are learnt from, since vLLM's schedulers are told no confidences; these stay in the workers
  (``AdaptiveVerificationManager._stale_confidences``, vLLM #47808).
* `DPEngineCoreProc._has_global_unfinished_reqs` runs on every rank after every step, idle ranks too. **Here**: the
  place to gather the ranks' messages (`with_exchange`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from equipoise.control import VerifyPrice
from equipoise.engines.verify.gather import Gather, gather_over
from equipoise.engines.verify.learnt import LearntSurvivals
from equipoise.engines.verify.rank import RankControl
from equipoise.engines.verify.versions import check_version, lacks

__all__ = ["RUN_ON", "SchedulerControl", "scheduler_class", "with_exchange"]

_log = logging.getLogger("vllm.equipoise")

RUN_ON = {"0.32.0": "its Scheduler and AsyncScheduler, the model behind them played"}
"""Versions of vLLM this was run on, and how."""

METHODS = {
    "schedule": (),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "_update_after_schedule": ("scheduler_output",),
}
MOST_ERRORS = 3
MOST_IN_FLIGHT = 64
"""Steps that vLLM may have scheduled and not heard of."""


class SchedulerControl:
    """What stands between one rank's scheduler and the plan.

    Whatever goes wrong in here is logged, and the step runs as vLLM would have run it; after three times it is left
    alone.

    Parameters
    ----------
    price : VerifyPrice
    drafts : int
        ``num_speculative_tokens``.
    asynchronous : bool
        Whether vLLM schedules a step before it has the last one's output: the plan is then for the step after the
        next.
    """

    def __init__(self, price: VerifyPrice, drafts: int, asynchronous: bool = False) -> None:
        self.control = RankControl(price, drafts, horizon=2 if asynchronous else 1)
        self.learnt = LearntSurvivals(drafts)
        self.step = 0
        """The step that is scheduled next: exchanges so far, which all ranks count alike."""
        self._offered: deque[dict[str, int]] = deque(maxlen=MOST_IN_FLIGHT)
        self._errors = 0

    def trim(self, running: Iterable[Any]) -> int:
        """Cut the drafts of running requests to the plan, before they are scheduled; return how many were cut."""
        if self._off:
            return 0
        lengths, offered = self.control.lengths(self.step), {}
        cut = 0
        for request in running:
            there = len(request.spec_token_ids)
            if not there:
                continue
            offered[request.request_id] = there
            most = lengths.get(request.request_id, there)
            if most < there:  # a new list: vLLM's placeholders are one list for all requests
                request.spec_token_ids = request.spec_token_ids[:most]
                cut += there - most
        self._offered.append(offered)
        return cut

    def learn(
        self,
        verified: Mapping[str, Sequence[int]],
        sampled: Sequence[Sequence[int]],
        row_of: Mapping[str, int],
        ended: Iterable[str] = (),
    ) -> None:
        """Count what came of a step.

        Parameters
        ----------
        verified : mapping of str to sequence of int
            ``SchedulerOutput.scheduled_spec_decode_tokens``.
        sampled, row_of
            ``ModelRunnerOutput.sampled_token_ids`` and ``req_id_to_index``.
        ended : iterable of str
            ``SchedulerOutput.finished_req_ids``.
        """
        if self._off:
            return
        offered = self._offered.popleft() if self._offered else {}
        for name in {**offered, **verified}:
            row, drafts = row_of.get(name), len(verified.get(name, ()))
            if row is None or not sampled or not sampled[row]:
                continue
            # a request of which nothing was verified comes nearer to the average: it is not written off for good
            accepted = min(max(len(sampled[row]) - 1, 0), drafts)
            self.learnt.saw(name, drafts, accepted, max(offered.get(name, drafts), drafts))
        self.learnt.forget(list(ended))

    def publish(self, running: Iterable[Any]) -> bytes:
        """How the rank stands after a step, for all ranks; once after each step, on idle ranks too.

        The survivals know the outcomes of all steps before the one that is in flight, so they are of the step
        ``horizon`` before the next one.

        Parameters
        ----------
        running : iterable of Request
            ``Scheduler.running``.
        """
        self.step += 1
        observed = max(0, self.step - self.control.horizon)
        try:
            decoding = [] if self._off else [r for r in running if not r.is_prefill_chunk]
            names = [r.request_id for r in decoding]
            context = [min(r.num_computed_tokens, r.num_tokens) for r in decoding]
            return self.control.observe(observed, names, context, self.learnt.survival(names))
        except Exception as error:
            self.failed(error)
            return self.control.observe(observed, [], [], [])  # the other ranks wait for a message

    def agree(self, messages: Sequence[bytes]) -> None:
        """Plan from what all ranks published, in rank order."""
        try:
            self.control.agree(messages)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Log what went wrong."""
        if self._off:
            return
        self._errors += 1
        _log.exception("equipoise: %s; vLLM verifies all drafts", error, exc_info=error)
        if self._off:
            _log.error("equipoise failed %d times and leaves", self._errors)

    @property
    def _off(self) -> bool:
        return self._errors >= MOST_ERRORS


def scheduler_class(
    base: type[Any], price: VerifyPrice, version: str, *, any_version: bool = False
) -> type[Any]:
    """Make a scheduler that keeps to plans; give it to vLLM as ``scheduler_cls``.

    Parameters
    ----------
    base : type
        ``vllm.v1.core.sched.async_scheduler.AsyncScheduler``, or ``Scheduler`` without asynchronous scheduling.
    price : VerifyPrice
    version : str
        ``vllm.__version__``.
    any_version : bool
        Go into a version it was never run on, if all it relies on is there.

    Returns
    -------
    type
        Its instances have a `SchedulerControl` as ``equipoise``; none without speculative decoding.

    Raises
    ------
    InputError
        A version it was never run on, or one that lacks something.
    """
    check_version("vLLM", version, RUN_ON, lacks(base, base.__name__, METHODS), any_version)
    asynchronous = any(kind.__name__ == "AsyncScheduler" for kind in base.__mro__)

    class ControlledScheduler(base):  # type: ignore[misc]
        equipoise: SchedulerControl | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.num_spec_tokens:
                self.equipoise = SchedulerControl(price, int(self.num_spec_tokens), asynchronous)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            if self.equipoise is not None:
                try:
                    self.equipoise.trim(self.running)
                except Exception as error:
                    self.equipoise.failed(error)
            return super().schedule(*args, **kwargs)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            if self.equipoise is not None:
                try:
                    self.equipoise.learn(
                        scheduler_output.scheduled_spec_decode_tokens,
                        model_runner_output.sampled_token_ids,
                        model_runner_output.req_id_to_index,
                        scheduler_output.finished_req_ids,
                    )
                except Exception as error:
                    self.equipoise.failed(error)
            return super().update_from_output(scheduler_output, model_runner_output)

    return ControlledScheduler


def with_exchange(core: type[Any]) -> type[Any]:
    """Make a `DPEngineCoreProc` that exchanges curves after every step of every rank.

    Parameters
    ----------
    core : type
        ``vllm.v1.engine.core.DPEngineCoreProc``.
    """

    class ExchangingCore(core):  # type: ignore[misc]
        _gather: Gather | None = None

        def _has_global_unfinished_reqs(self, *args: Any, **kwargs: Any) -> Any:
            control = getattr(self.scheduler, "equipoise", None)
            if control is not None:
                if self._gather is None:
                    self._gather = gather_over(self.dp_group)
                control.agree(self._gather(control.publish(self.scheduler.running)))
            return super()._has_global_unfinished_reqs(*args, **kwargs)

    return ExchangingCore
