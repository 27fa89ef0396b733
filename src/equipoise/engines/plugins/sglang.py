"""SGLang: the entry point `equipoise-sglang` of the group `sglang.srt.plugins`.

SGLang's `DataParallelController` sends requests to ranks; with ``--load-balance-method total_tokens`` it reads what
the ranks publish and takes the one with the fewest tokens. With ``EQUIPOISE_SGLANG=1`` a policy says the rank instead.

The controller never sees an answer, so the ledger here is what the ranks published last and, on top, what was sent to
each since: a request counts as taken in by its rank once a snapshot is younger than it by the time a rank takes to look
for new requests, a step. How good that is depends on ``--load-snapshot-publish-interval``: at 1 the picture is a step
old, at SGLang's 15 it is 15 steps old. Lengths of answers are never told to the policy.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.engines.plugins.options import Options, is_on, read_options, refusal

if TYPE_CHECKING:
    from equipoise.engines.plugins.book import Book

__all__ = ["RUN_ON", "Seat", "install", "register"]

_log = logging.getLogger("sglang.equipoise")

RUN_ON = {"0.5.23": "its controller, its hooks and its messages, the ranks behind it played"}
"""Versions of SGLang this was run on, and how."""

MODULE = "sglang.srt.managers.data_parallel_controller"
CONTROLLER = "DataParallelController"
METHODS = {
    (CONTROLLER, "__init__"): (),
    (CONTROLLER, "total_tokens_scheduler"): ("req",),
    (CONTROLLER, "maybe_external_dp_rank_routing"): ("req",),
    ("DPBudget", "update_budget"): ("loads",),
}
METHOD = "total_tokens"
MOST_ERRORS = 3
_MARK = "_equipoise"


def register() -> None:
    """Called by SGLang in each of its processes; does nothing unless ``EQUIPOISE_SGLANG=1``."""
    try:
        if not is_on("SGLANG"):
            return
        asked = read_options()
        from sglang.version import __version__ as version

        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        install(importlib.import_module(MODULE), hooks, str(version), asked)
    except Exception as error:  # an engine does not start without us, and must not fail to because of us
        _log.error("equipoise stays out of SGLang: %s; SGLang keeps its own balancer", error)


def install(module: ModuleType, hooks: ModuleType, version: str, asked: Options) -> bool:
    """Register the hooks; whether they are registered.

    Parameters
    ----------
    module : module
        ``sglang.srt.managers.data_parallel_controller``.
    hooks : module
        ``sglang.srt.plugins.hook_registry``.
    version : str
        Of SGLang.
    asked : Options
    """
    why = refusal("SGLang", version, RUN_ON, lacks(module), asked.any_version)
    if why:
        _log.error("%s", why)
        return False

    def sit(result: None, controller: Any, *args: Any, **kwargs: Any) -> None:
        seat = Seat.take(controller, module.sock_send, asked)
        setattr(controller, _MARK, seat)
        setattr(controller.dp_budget, _MARK, seat)

    def dispatch(original: Callable[..., None], controller: Any, req: Any) -> None:
        seat = getattr(controller, _MARK, None)
        if seat is None or not seat.dispatch(controller, req, original):
            original(controller, req)

    def look(result: None, budget: Any, loads: Iterable[Any]) -> None:
        seat = getattr(budget, _MARK, None)
        if seat is not None:
            seat.look(loads)

    kinds = hooks.HookType
    for name, hook, kind in (
        (f"{CONTROLLER}.__init__", sit, kinds.AFTER),
        (f"{CONTROLLER}.total_tokens_scheduler", dispatch, kinds.AROUND),
        ("DPBudget.update_budget", look, kinds.AFTER),
    ):
        hooks.HookRegistry.register(f"{MODULE}.{name}", hook, kind)
    return True


def lacks(module: ModuleType) -> str:
    """What this relies on and an SGLang has not, in words; empty: all is there."""
    if not callable(getattr(module, "sock_send", None)):
        return "it has no sock_send"
    for (owner, name), words in METHODS.items():
        method = getattr(module, owner, None) and getattr(module, owner).__dict__.get(name)
        if method is None:
            return f"{owner} has no {name}"
        taken = inspect.signature(inspect.unwrap(method)).parameters
        for word in words:
            if word not in taken:
                return f"{owner}.{name} takes no {word}"
    return ""


class Seat:
    """What is kept beside a controller.

    Parameters
    ----------
    book : Book
    send : callable
        Sends a message to a socket.
    settle_s : float
        Longest time until a rank has taken in what was sent to it.
    wall : callable
        Seconds since the epoch, as snapshots have them.
    """

    def __init__(
        self,
        book: Book,
        send: Callable[[Any, Any], None],
        settle_s: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.book: Book | None = book
        self._send, self._settle_s, self._wall = send, settle_s, wall
        ranks = book.ranks
        self._sent: list[deque[tuple[float, str]]] = [deque() for _ in range(ranks)]
        self._seen_s = [0.0] * ranks
        self._batch, self._tokens = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
        self._limits = [(0, 0)] * ranks
        self._serving = [True] * ranks
        self._errors = 0

    @classmethod
    def take(cls, controller: Any, send: Callable[[Any, Any], None], asked: Options) -> Seat | None:
        """Sit down beside a controller that has just been made; none, and a line that says why, where that fails."""
        try:
            return cls._take(controller, send, asked)
        except Exception as error:
            _log.error("equipoise stays out: %s; SGLang keeps its own balancer", error)
            return None

    @classmethod
    def _take(cls, controller: Any, send: Callable[[Any, Any], None], asked: Options) -> Seat | None:
        from equipoise.engines.plugins.book import Book

        method = controller.load_balance_method.name.lower()
        if method != METHOD:
            _log.error(
                "equipoise stays out: --load-balance-method is %s; give --load-balance-method %s",
                method,
                METHOD,
            )
            return None
        parallel = importlib.import_module(MODULE).get_parallel()
        ranks, lock_step = int(controller.dp_budget.num_dp_ranks), bool(parallel.attn_dp_enabled)
        _log.info("equipoise: compiling, once a machine")
        capacity = int(getattr(controller, "max_total_num_tokens", 0) or 0)
        book = Book(asked, ranks, lock_step=lock_step, kv_capacity_tokens=capacity or None, log=_log)
        book.warm_up()
        _log.info(
            "equipoise places: policy %s, cost %s, %d ranks%s, %s tokens a rank",
            asked.policy,
            asked.cost,
            ranks,
            " in lock-step" if lock_step else "",
            capacity or "unknown",
        )
        return cls(book, send, asked.settle_s)

    def dispatch(self, controller: Any, req: Any, original: Callable[..., None]) -> bool:
        """Send a request to a rank; false: it was not sent, and SGLang should."""
        book = self.book
        if book is None:
            return False
        if req.routed_dp_rank is not None:
            original(controller, req)  # raises where that rank is not active
            self._note(req, int(req.routed_dp_rank))
            return True
        try:
            self._watch(controller)
            tokens = _prompt_tokens(req)
            budget = int(getattr(getattr(req, "sampling_params", None), "max_new_tokens", None) or -1)
            rank = book.place(req.rid, tokens, budget, getattr(req, "session_id", None))
        except Exception as error:
            self._failed(error)
            return False
        if rank is None:
            return False
        budgets = controller.dp_budget  # kept as SGLang would, for the day it takes over again
        budgets.total_requests[rank] += 1
        budgets.total_tokens[rank] += tokens
        self._sent[rank].append((self._wall(), req.rid))
        self._send(controller.workers[rank], req)
        return True

    def look(self, loads: Iterable[Any]) -> None:
        """Take in what ranks have published."""
        book = self.book
        if book is None:
            return
        try:
            news = False
            for load in loads:
                rank, at_s = int(load.dp_rank), float(load.timestamp)
                if not 0 <= rank < book.ranks or at_s <= self._seen_s[rank]:
                    continue
                news = True
                # what it had before its last look but one it has taken in; it looks once a step
                before_s = at_s - min(at_s - self._seen_s[rank], self._settle_s)
                self._seen_s[rank] = at_s
                sent = self._sent[rank]
                while sent and sent[0][0] <= before_s:
                    book.handed_over(sent.popleft()[1])
                self._batch[rank] = load.num_running_reqs + load.num_waiting_reqs
                self._tokens[rank] = load.num_total_tokens
                limits = (int(load.max_total_num_tokens), int(load.max_running_requests))
                if limits != self._limits[rank]:
                    self._limits[rank] = limits
                    book.limit(rank, *limits)
            if news:
                book.others(self._batch, self._tokens)
            book.share()
        except Exception as error:
            self._failed(error)

    # -- inside --------------------------------------------------------------------------------------------------

    def _note(self, req: Any, rank: int) -> None:
        """Count a request that its client has sent to a rank."""
        book = self.book
        if book is None:
            return
        try:
            if 0 <= rank < book.ranks:
                book.took(req.rid, rank, _prompt_tokens(req), pinned=True)
                self._sent[rank].append((self._wall(), req.rid))
        except Exception as error:
            self._failed(error)

    def _watch(self, controller: Any) -> None:
        """Send nothing to ranks that are not active."""
        book = self.book
        if book is None:
            return
        active = set(controller._active_workers)
        for rank, was in enumerate(self._serving):
            serves = rank in active and bool(controller.status[rank]) and controller.workers[rank] is not None
            if serves != was:
                self._serving[rank] = serves
                book.serve(rank, serves)

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        if self._errors >= MOST_ERRORS:
            self.book = None
            _log.error("equipoise failed %d times and leaves: SGLang keeps its own balancer", self._errors)
        _log.exception("equipoise: %s", error, exc_info=error)


def _prompt_tokens(req: Any) -> int:
    """Length of a prompt, whether it came as tokens or as embeddings."""
    if req.input_ids is not None:
        return len(req.input_ids)
    embeds = getattr(req, "input_embeds", None)
    return 0 if embeds is None else len(embeds)
