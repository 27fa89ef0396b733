"""vLLM: the entry point `equipoise-vllm` of the group `vllm.general_plugins`.

vLLM's front end chooses a data-parallel rank in `DPLBAsyncMPClient.get_core_engine_for_request`, by requests alone.
With ``EQUIPOISE_VLLM=1`` a policy says the rank instead, on a ledger of exact lengths: the prompt is in the request,
and every token passes through this same client on its way out. The rank is given to vLLM's own method as if the client
had pinned it, so that all of vLLM's books are kept by vLLM.

Whatever goes wrong in here is said once, and the request goes where vLLM would have sent it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from equipoise.engines.plugins.options import Options, is_on, read_options, refusal

if TYPE_CHECKING:
    from equipoise.engines.plugins.book import Book

__all__ = ["RUN_ON", "Seat", "install", "register"]

_log = logging.getLogger("vllm.equipoise")

RUN_ON = {
    "0.32.0": "its client class and its messages, the engine behind them played",
    "0.33.0": "its client class and its messages, the engine behind them played",
}
"""Versions of vLLM this was run on, and how."""

MODULE = "vllm.v1.engine.core_client"
CLIENT = "DPLBAsyncMPClient"
METHODS = {
    "__init__": ("client_count", "client_index"),
    "get_core_engine_for_request": ("request",),
    "process_engine_outputs": ("outputs",),
    "abort_requests_async": ("request_ids",),
}
FIELDS = {
    "EngineCoreRequest": (
        "request_id", "prompt_token_ids", "prompt_embeds", "sampling_params", "pooling_params",
        "data_parallel_rank",
    ),
    "EngineCoreOutputs": ("outputs", "finished_requests"),
}  # fmt: skip
MOST_ERRORS = 3
"""Errors after which a front end goes back to vLLM's balancer for good."""
RECONCILE_S = 10.0
COMPLETED = frozenset({"stop", "length", "repetition"})
_MARK = "_equipoise"


def register() -> None:
    """Called by vLLM in each of its processes; does nothing unless ``EQUIPOISE_VLLM=1``."""
    try:
        if not is_on("VLLM"):
            return
        asked = read_options()
        from vllm.version import __version__ as version

        install(importlib.import_module(MODULE), str(version), asked)
    except Exception as error:  # an engine does not start without us, and must not fail to because of us
        _log.error("equipoise stays out of vLLM: %s; vLLM keeps its own balancer", error)


def install(module: ModuleType, version: str, asked: Options) -> bool:
    """Put a policy into the client class of a vLLM; whether it is there now.

    Parameters
    ----------
    module : module
        ``vllm.v1.engine.core_client``.
    version : str
        Of vLLM.
    asked : Options
    """
    client: Any = getattr(module, CLIENT, None)
    if client is not None and _MARK in client.__dict__:
        return True
    why = refusal("vLLM", version, RUN_ON, lacks(module), asked.any_version)
    if why:
        _log.error("%s", why)
        return False
    begin, choose = client.__init__, client.get_core_engine_for_request
    receive, abort = client.process_engine_outputs, client.abort_requests_async

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        begin(self, *args, **kwargs)
        setattr(self, _MARK, Seat.take(self, asked))

    @functools.wraps(choose)
    def get_core_engine_for_request(self: Any, request: Any) -> Any:
        seat = getattr(self, _MARK, None)
        return choose(self, request) if seat is None else seat.choose(self, request, choose)

    @functools.wraps(receive)
    async def process_engine_outputs(self: Any, outputs: Any) -> None:
        await receive(self, outputs)
        seat = getattr(self, _MARK, None)
        if seat is not None:
            seat.receive(self, outputs)

    @functools.wraps(abort)
    async def abort_requests_async(self: Any, request_ids: list[str]) -> None:
        try:
            await abort(self, request_ids)
        finally:
            seat = getattr(self, _MARK, None)
            if seat is not None:
                seat.abort(request_ids)

    client.__init__ = __init__
    client.get_core_engine_for_request = get_core_engine_for_request
    client.process_engine_outputs = staticmethod(process_engine_outputs)
    client.abort_requests_async = abort_requests_async
    setattr(client, _MARK, None)
    return True


def lacks(module: ModuleType) -> str:
    """What this relies on and a vLLM has not, in words; empty: all is there."""
    client = getattr(module, CLIENT, None)
    if client is None:
        return f"it has no {CLIENT}"
    for name, words in METHODS.items():
        method = client.__dict__.get(name)
        if method is None:
            return f"{CLIENT} has no {name}"
        if isinstance(method, staticmethod) != (name == "process_engine_outputs"):
            return f"{CLIENT}.{name} is of another kind"
        taken = inspect.signature(inspect.unwrap(getattr(client, name))).parameters
        for word in words:
            if word not in taken:
                return f"{CLIENT}.{name} takes no {word}"
    for name, fields in FIELDS.items():
        message = getattr(module, name, None)
        for field in fields:
            if field not in getattr(message, "__struct_fields__", ()):
                return f"{name} has no {field}"
    return ""


class Seat:
    """What one client of an engine keeps: the ledger, and what vLLM is to be asked about it.

    Parameters
    ----------
    book : Book
    longest : int
        Tokens a request may have; a limit that only says as much is none. 0: not known.
    """

    def __init__(self, book: Book, longest: int = 0) -> None:
        self.book: Book | None = book
        self._longest, self._errors = longest, 0
        self._stops: set[str] = set()
        self._reconciled_s = time.monotonic()

    @classmethod
    def take(cls, client: Any, asked: Options) -> Seat | None:
        """Sit down in a client that has just been made; none, and a line that says why, where that fails."""
        try:
            return cls._take(client, asked)
        except Exception as error:
            _log.error("equipoise stays out of this front end: %s; vLLM keeps its own balancer", error)
            return None

    @classmethod
    def _take(cls, client: Any, asked: Options) -> Seat:
        from equipoise.engines.plugins.book import Book
        from equipoise.engines.plugins.peers import Peers

        config, ranks = client.vllm_config, len(client.core_engines)
        count, index = int(client.client_count), int(client.client_index)
        peers = None
        if count > 1:
            ranks_managed = getattr(client, "engine_ranks_managed", None) or [0]
            key = f"{os.getppid()} {client.stats_update_address} {ranks_managed[0]}"
            peers = Peers(key, count, index, ranks)
        _log.info("equipoise: compiling, once a machine")
        lock_step = bool(getattr(config.model_config, "is_moe", True))
        capacity = getattr(config.cache_config, "kv_cache_size_tokens", None)
        batch = getattr(config.scheduler_config, "max_num_seqs", None)
        book = Book(
            asked,
            ranks,
            lock_step=lock_step,
            kv_capacity_tokens=int(capacity) if capacity else None,
            max_batch=int(batch) if batch else None,
            peers=peers,
            decisions=_numbered(asked.decisions, count, index),
            log=_log,
        )
        book.warm_up()
        _log.info(
            "equipoise places for front end %d of %d: policy %s, cost %s, %d ranks%s, %s tokens and %s requests a rank",
            index + 1,
            count,
            asked.policy,
            asked.cost,
            ranks,
            " in lock-step" if lock_step else "",
            capacity or "unknown",
            batch or "unknown",
        )
        return cls(book, int(getattr(config.model_config, "max_model_len", 0) or 0))

    def choose(self, client: Any, request: Any, choose: Any) -> Any:
        """An engine for a request, by vLLM's own method, told which if that is ours to say."""
        request_id = request.request_id
        if (
            request_id in client.reqs_in_flight or self.book is None
        ):  # more input of one that runs: where it is
            return choose(client, request)
        pinned = request.data_parallel_rank is not None
        rank = None
        if not pinned and request.pooling_params is None:
            rank = self._place(client, request)
        if rank is None:
            engine = choose(client, request)
            self._took(client, request, engine, pinned)
            return engine
        request.data_parallel_rank = rank
        try:
            return choose(client, request)
        finally:
            request.data_parallel_rank = None  # the engine is told what it would have been without us

    def receive(self, client: Any, outputs: Any) -> None:
        """Count what has come out, and end what has ended."""
        book = self.book
        if book is None:
            return
        try:
            completed = set()
            for output in outputs.outputs:
                count = len(output.new_token_ids)
                if count:
                    book.tokens(output.request_id, count)
                if output.finish_reason is not None and str(output.finish_reason) in COMPLETED:
                    completed.add(output.request_id)
            for request_id in outputs.finished_requests or ():
                book.ended(request_id, completed=request_id in completed)
                self._stops.discard(request_id)
            now_s = time.monotonic()
            if now_s - self._reconciled_s >= RECONCILE_S:
                self._reconciled_s = now_s
                lost = book.reconcile(client.reqs_in_flight)
                if lost:
                    _log.warning("equipoise: vLLM no longer had %d requests of the ledger", lost)
            book.share()
        except Exception as error:
            self._failed(error)

    def abort(self, request_ids: list[str]) -> None:
        """The front end has given up requests: their clients have left, or a stop string has come."""
        book = self.book
        if book is None:
            return
        try:
            for request_id in request_ids:
                book.ended(request_id, completed=request_id in self._stops)
                self._stops.discard(request_id)
            book.share()
        except Exception as error:
            self._failed(error)

    # -- inside --------------------------------------------------------------------------------------------------

    def _place(self, client: Any, request: Any) -> int | None:
        try:
            book = self.book
            if book is None:
                return None
            if book.ranks != len(client.core_engines):
                book.resize(len(client.core_engines))
            prompt, params = _prompt_tokens(request), request.sampling_params
            budget = int(getattr(params, "max_tokens", None) or -1)
            if self._longest and budget >= self._longest - prompt:
                budget = -1
            session = getattr(request, "session_id", None)
            rank = book.place(request.request_id, prompt, budget, session)
            if rank is not None:
                book.share()
                if getattr(params, "stop", None):  # found by the front end, which then aborts the request
                    self._stops.add(request.request_id)
            return rank
        except Exception as error:
            self._failed(error)
            return None

    def _took(self, client: Any, request: Any, engine: Any, pinned: bool) -> None:
        book = self.book
        if book is None:
            return
        try:
            rank = client.core_engines.index(engine)
            book.took(request.request_id, rank, _prompt_tokens(request), pinned=pinned)
            book.share()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        if self._errors >= MOST_ERRORS:
            self.book = None
            _log.error("equipoise failed %d times and leaves: vLLM keeps its own balancer", self._errors)
        _log.exception("equipoise: %s", error, exc_info=error)


def _prompt_tokens(request: Any) -> int:
    """Length of a prompt, whether it came as tokens or as embeddings."""
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    return 0 if request.prompt_embeds is None else len(request.prompt_embeds)


def _numbered(name: str, count: int, index: int) -> str:
    """Front ends write a decision log each."""
    path = Path(name)
    return str(path.with_name(f"{path.stem}-{index}{path.suffix}")) if name and count > 1 else name
