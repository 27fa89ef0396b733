"""What each engine looks like from outside: how it takes a rank, what its errors, chunks, metrics and loads are."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from equipoise.testing.mock_engine.core import LockStep
from equipoise.testing.mock_engine.requests import Asked

__all__ = ["SHAPES", "Dynamo", "Picture", "RefusedError", "Setting", "Sglang", "Shape", "Vllm"]


class RefusedError(Exception):
    """The engine answers with an error."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(status)
        self.status = status
        self.document = document


@dataclass(frozen=True, slots=True)
class Setting:
    """What a shape has to know of the server.

    ``rank_of_port`` is the rank of a server in mode one-port-per-rank, else -1.
    """

    model: str
    ranks: int
    first_rank: int
    numbering: str
    block_tokens: int
    worker_id: int
    header_overrides: bool
    rank_of_port: int = -1


@dataclass(frozen=True, slots=True)
class Picture:
    """Loads as published: a step or more old."""

    taken_s: float
    """Unix time."""
    running: list[int]
    waiting: list[int]
    held: list[int]
    queued: list[int]
    """Tokens of the waiting requests."""
    generated: list[int]
    preempted: list[int]

    @classmethod
    def of(cls, core: LockStep) -> Picture:
        """Take one."""
        return cls(
            time.time(),
            core.batch,
            [len(q) for q in core.waiting],
            core.held_tokens.tolist(),
            [sum(j.context_tokens for j in q) for q in core.waiting],
            core.generated.tolist(),
            core.preempted.tolist(),
        )


class Shape(Protocol):
    """One engine."""

    publish_steps: int
    """Steps between two pictures."""
    refuses_in_stream: bool
    """Whether a streamed completion is refused by an event, its status being 200 by then."""

    def pinned(self, path: str, asked: Asked, headers: Mapping[str, str], setting: Setting) -> int | None:
        """The rank a request names, None where the engine chooses; raises `RefusedError` as the engine would refuse."""
        ...

    def balanced(self, core: LockStep, turn: int) -> int:
        """The rank it chooses by itself."""
        ...

    def error(self, status: int, message: str) -> Mapping[str, Any]:
        """The body of an error."""
        ...

    def metrics(self, picture: Picture, core: LockStep, setting: Setting) -> str:
        """``GET /metrics`` of the worker."""
        ...

    def extra(self, asked: Asked, rank: int, setting: Setting) -> Mapping[str, Any]:
        """Fields of every chunk that only this engine has."""
        ...


class Vllm:
    """vLLM 0.32 and 0.33."""

    publish_steps = 1
    refuses_in_stream = True

    def pinned(self, path: str, asked: Asked, headers: Mapping[str, str], setting: Setting) -> int | None:
        """Header, non-integers ignored; a server that is one rank knows rank 0 only."""
        text = headers.get("X-data-parallel-rank")
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            return None
        count = 1 if setting.rank_of_port >= 0 else setting.ranks
        first = setting.first_rank if setting.numbering == "global" and setting.rank_of_port < 0 else 0
        if not first <= number < first + count:
            message = f"data_parallel_rank {number} is out of range [{first}, {first + count})."
            raise RefusedError(400, self.error(400, message))
        return setting.rank_of_port if setting.rank_of_port >= 0 else number - first

    def balanced(self, core: LockStep, turn: int) -> int:
        """Fewest requests, ties in turn."""
        loads = [len(core.running[r]) + len(core.waiting[r]) for r in range(core.ranks)]
        low = min(loads)
        ties = [r for r, load in enumerate(loads) if load == low]
        return ties[turn % len(ties)]

    def error(self, status: int, message: str) -> Mapping[str, Any]:
        """Nested."""
        kind = "BadRequestError" if status == 400 else "InternalServerError"
        return {"error": {"message": message, "type": kind, "param": None, "code": status}}

    def metrics(self, picture: Picture, core: LockStep, setting: Setting) -> str:
        """By engine."""
        page = _Page("model_name", setting.model)
        shown = [setting.rank_of_port] if setting.rank_of_port >= 0 else range(core.ranks)
        rows = [({"engine": str(setting.first_rank + r)}, r) for r in shown]
        capacity = core.kv_capacity_tokens
        page.family("vllm:num_requests_running", "gauge", [(k, picture.running[r]) for k, r in rows])
        page.family("vllm:num_requests_waiting", "gauge", [(k, picture.waiting[r]) for k, r in rows])
        page.family("vllm:kv_cache_usage_perc", "gauge", [(k, picture.held[r] / capacity) for k, r in rows])
        page.family("vllm:num_preemptions_total", "counter", [(k, picture.preempted[r]) for k, r in rows])
        page.family("vllm:generation_tokens_total", "counter", [(k, picture.generated[r]) for k, r in rows])
        block = setting.block_tokens
        info = {
            "block_size": str(block),
            "kv_cache_size_tokens": str(capacity),
            "num_gpu_blocks": str(capacity // block),
        }
        self._info(page, [({**info, **k}, 1) for k, _ in rows])
        return page.text()

    def _info(self, page: _Page, rows: list[tuple[dict[str, str], float]]) -> None:
        page.label = None
        page.family("vllm:cache_config_info", "gauge", rows)

    def extra(self, asked: Asked, rank: int, setting: Setting) -> Mapping[str, Any]:
        """None: vLLM does not say which rank served."""
        return {}


class Sglang:
    """SGLang 0.5.23."""

    publish_steps = 15
    refuses_in_stream = False

    def pinned(self, path: str, asked: Asked, headers: Mapping[str, str], setting: Setting) -> int | None:
        """Header on OpenAI routes over body; on ``/generate`` body, or override header where enabled."""
        number = asked.body.get("routed_dp_rank")
        if number is None:
            number = asked.body.get("data_parallel_rank")
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise RefusedError(400, self.error(400, "routed_dp_rank: Input should be a valid integer"))
        if not asked.own and (text := headers.get("X-Data-Parallel-Rank")) is not None:
            try:
                number = int(text)
            except ValueError:
                message = f"Invalid X-Data-Parallel-Rank header: must be an integer, got '{text}'"
                raise RefusedError(400, self.error(400, message)) from None
        text = headers.get("x-override-routed-dp-rank")
        if setting.header_overrides and text is not None:
            try:
                number = int(text)
            except ValueError as error:
                message = f"invalid x-override-routed-dp-rank header {text!r}: {error}"
                raise RefusedError(400, self.error(400, message)) from None
        if number is None:
            return None
        count = 1 if setting.rank_of_port >= 0 else setting.ranks
        if not 0 <= number < count:
            raise RefusedError(400, self.error(400, f"routed_dp_rank={number} out of range [0, {count})"))
        return setting.rank_of_port if setting.rank_of_port >= 0 else number

    def balanced(self, core: LockStep, turn: int) -> int:
        """In turn."""
        return turn % core.ranks

    def error(self, status: int, message: str) -> Mapping[str, Any]:
        """Flat."""
        kind = "BadRequestError" if status == 400 else "InternalServerError"
        return {"object": "error", "message": message, "type": kind, "param": None, "code": status}

    def metrics(self, picture: Picture, core: LockStep, setting: Setting) -> str:
        """By dp_rank."""
        page = _Page("model_name", setting.model)
        shown = [setting.rank_of_port] if setting.rank_of_port >= 0 else range(core.ranks)
        rows = [
            ({"dp_rank": str(0 if setting.rank_of_port >= 0 else r), "tp_rank": str(r)}, r) for r in shown
        ]
        capacity = core.kv_capacity_tokens
        page.family("sglang:num_running_reqs", "gauge", [(k, picture.running[r]) for k, r in rows])
        page.family("sglang:num_queue_reqs", "gauge", [(k, picture.waiting[r]) for k, r in rows])
        page.family("sglang:num_used_tokens", "gauge", [(k, picture.held[r]) for k, r in rows])
        page.family("sglang:decode_sum_seq_lens", "gauge", [(k, picture.held[r]) for k, r in rows])
        page.family("sglang:token_usage", "gauge", [(k, picture.held[r] / capacity) for k, r in rows])
        page.family("sglang:max_total_num_tokens", "gauge", [(k, capacity) for k, r in rows])
        return page.text()

    def loads(self, picture: Picture, core: LockStep, setting: Setting) -> Mapping[str, Any]:
        """``GET /v1/loads``."""
        shown = [setting.rank_of_port] if setting.rank_of_port >= 0 else range(core.ranks)
        capacity = core.kv_capacity_tokens
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": "0.5.23",
            "accelerator": "mock",
            "num_accelerators": 1,
            "loads": [
                {
                    "timestamp": picture.taken_s,
                    "dp_rank": 0 if setting.rank_of_port >= 0 else r,
                    "num_running_reqs": picture.running[r],
                    "num_waiting_reqs": picture.waiting[r],
                    "num_waiting_uncached_tokens": picture.queued[r],
                    "num_used_tokens": picture.held[r],
                    "num_total_tokens": picture.held[r] + picture.queued[r],
                    "num_active_tokens": picture.held[r] + picture.queued[r],
                    "num_prealloc_ready_tokens": 0,
                    "max_total_num_tokens": capacity,
                    "max_running_requests": core.max_batch,
                    "token_usage": picture.held[r] / capacity,
                }
                for r in shown
            ],
        }

    def extra(self, asked: Asked, rank: int, setting: Setting) -> Mapping[str, Any]:
        """None."""
        return {}


class Dynamo(Vllm):
    """Dynamo 1.6: frontend, one worker behind it."""

    publish_steps = 1
    refuses_in_stream = False

    def pinned(self, path: str, asked: Asked, headers: Mapping[str, str], setting: Setting) -> int | None:
        """Worker and rank by headers over ``nvext``; a rank without a worker is ignored."""
        nvext = asked.body.get("nvext")
        nvext = nvext if isinstance(nvext, dict) else {}
        worker = _first(headers, "x-dynamo-worker-instance-id", "x-worker-instance-id")
        if worker is None:
            named = nvext.get("backend_instance_id", nvext.get("decode_worker_id"))
            worker = None if named is None else str(named)
        rank = _first(headers, "x-dynamo-dp-rank", "x-dp-rank", "x-data-parallel-rank")
        if rank is None and nvext.get("dp_rank") is not None:
            rank = str(nvext["dp_rank"])
        if worker is None:
            return None
        if worker != str(setting.worker_id):
            raise RefusedError(400, {"message": "Invalid request", "type": "Bad Request", "code": 400})
        if rank is None:
            return None
        if not rank.isdigit() or int(rank) >= setting.ranks:
            raise RefusedError(500, self.error(500, "Failed to generate completions"))
        return int(rank)

    def balanced(self, core: LockStep, turn: int) -> int:
        """Fewest held tokens."""
        return int(core.held_tokens.argmin())

    def error(self, status: int, message: str) -> Mapping[str, Any]:
        """Flat, with the reason phrase as its type."""
        kinds = {400: "Bad Request", 429: "Too Many Requests", 503: "Service Unavailable"}
        return {"message": message, "type": kinds.get(status, "Internal Server Error"), "code": status}

    def _info(self, page: _Page, rows: list[tuple[dict[str, str], float]]) -> None:
        """Workers do not tell the size of their cache; the frontend does."""

    def frontend(self, picture: Picture, core: LockStep, setting: Setting) -> str:
        """``GET /metrics`` of the frontend."""
        page = _Page("model", setting.model)
        block, capacity = setting.block_tokens, core.kv_capacity_tokens
        page.family("dynamo_frontend_model_kv_cache_block_size", "gauge", [({}, block)])
        page.family("dynamo_frontend_model_max_num_seqs", "gauge", [({}, core.max_batch)])
        page.family("dynamo_frontend_model_total_kv_blocks", "gauge", [({}, capacity // block)])
        page.label = None
        worker = {"worker_id": str(setting.worker_id), "worker_type": "decode"}
        page.family(
            "dynamo_frontend_worker_active_decode_blocks",
            "gauge",
            [({"dp_rank": str(r), **worker}, -(-picture.held[r] // block)) for r in range(core.ranks)],
        )
        return page.text()

    def health(self, setting: Setting) -> Mapping[str, Any]:
        """``GET /health`` of the frontend."""
        return {
            "status": "healthy",
            "endpoints": ["dyn://dynamo.backend.generate"],
            "instances": [
                {
                    "component": "backend",
                    "endpoint": "generate",
                    "namespace": "dynamo",
                    "instance_id": setting.worker_id,
                }
            ],
        }

    def extra(self, asked: Asked, rank: int, setting: Setting) -> Mapping[str, Any]:
        """The worker and rank, where ``nvext.extra_fields`` asks for them."""
        nvext = asked.body.get("nvext")
        fields = nvext.get("extra_fields") if isinstance(nvext, dict) else None
        if not isinstance(fields, list) or "worker_id" not in fields:
            return {}
        return {"nvext": {"worker_id": {"decode_worker_id": setting.worker_id, "decode_dp_rank": rank}}}


SHAPES: Mapping[str, type[Vllm] | type[Sglang]] = {"vllm": Vllm, "sglang": Sglang, "dynamo": Dynamo}


class _Page:
    """A page of metrics."""

    def __init__(self, label: str, value: str) -> None:
        self.label: str | None = label
        self._value = value
        self._lines: list[str] = []

    def family(self, name: str, kind: str, rows: list[tuple[dict[str, str], float]]) -> None:
        self._lines += [f"# HELP {name} {name}", f"# TYPE {name} {kind}"]
        for labels, value in rows:
            shown = {**labels, self.label: self._value} if self.label else labels
            inner = ",".join(f"{k}={json.dumps(v)}" for k, v in sorted(shown.items()))
            self._lines.append(f"{name}{{{inner}}} {float(value)!r}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _first(headers: Mapping[str, str], *names: str) -> str | None:
    return next((headers[n] for n in names if n in headers), None)
