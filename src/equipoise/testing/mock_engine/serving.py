"""`Serving`: a mock engine answers requests that generate, or fails as it is told to, and remembers what it saw."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from equipoise.errors import InputError
from equipoise.testing.mock_engine.answers import Answer
from equipoise.testing.mock_engine.core import Job, LockStep
from equipoise.testing.mock_engine.pace import Pace
from equipoise.testing.mock_engine.requests import Asked, asked
from equipoise.testing.mock_engine.shapes import RefusedError, Setting, Sglang, Vllm
from equipoise.testing.mock_engine.streams import Stream

try:
    from aiohttp import web
except ImportError as missing:
    raise ImportError("the mock engine needs aiohttp: pip install 'equipoise[serve]'") from missing

__all__ = ["SETTING", "Serving"]

KEPT_HEADERS = 1000
"""Requests whose headers are remembered."""
SETTING: web.AppKey[Setting] = web.AppKey("setting", Setting)
STREAM_FAULTS = ("reset", "cut", "bad_chunk", "error_event")


class Serving(Pace):
    """The middle layer of `MockEngine`.

    Parameters
    ----------
    kind : str
    core : LockStep
    shape : Shape
    speed_up : float
    publish_steps : int, optional
    mean_output_tokens : float
    """

    def __init__(
        self,
        kind: str,
        core: LockStep,
        shape: Vllm | Sglang,
        speed_up: float,
        publish_steps: int | None,
        mean_output_tokens: float,
    ) -> None:
        super().__init__(core, shape, speed_up, publish_steps)
        self.kind = kind
        self._mean_output = mean_output_tokens
        self._turn = 0
        self._hanging: set[asyncio.Future[None]] = set()
        self.headers_seen: deque[dict[str, str]] = deque(maxlen=KEPT_HEADERS)
        """Headers of the last requests that generate, names in lower case, oldest first."""
        self.bodies_seen: deque[Mapping[str, Any]] = deque(maxlen=KEPT_HEADERS)
        """Bodies of the same requests."""
        self.answers: Counter[int] = Counter()
        """How many answers had which status."""
        self._by_rank = [Counter[str]() for _ in range(core.ranks)]

    def clear_faults(self, kind: str | None = None) -> None:
        """End faults of a kind, or all; what hangs is reset, what stalls goes on."""
        self.faults.clear(kind)
        for waiting in list(self._hanging):
            if not waiting.done():
                waiting.set_result(None)
        self._work.set()

    def lose_rank(self, rank: int) -> None:
        """Lose a rank: its streams are reset, requests for it answer 500, all ranks stall until faults are cleared."""
        self.faults.add("rank_lost", rank=rank)
        self._break_lost()

    def seen(self) -> dict[str, Any]:
        """What it saw and did: for assertions, and ``GET /seen``."""
        core = self.core
        return {
            "engine": self.kind,
            "steps": core.steps,
            "virtual_s": core.now_s,
            "late_s": self.late_s,
            "answers": {str(status): count for status, count in sorted(self.answers.items())},
            "faults": dict(self.faults.befallen),
            "ranks": [
                {
                    "running": len(core.running[r]),
                    "waiting": len(core.waiting[r]),
                    "held_tokens": int(core.held_tokens[r]),
                    "generated_tokens": int(core.generated[r]),
                    "preempted": int(core.preempted[r]),
                    **{
                        k: self._by_rank[r][k]
                        for k in ("requests", "pinned", "finished", "aborted", "refused")
                    },
                }
                for r in range(core.ranks)
            ],
        }

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        setting: Setting = request.app[SETTING]
        data = await request.read()
        self.headers_seen.append({k.lower(): v for k, v in request.headers.items()})
        try:
            want = asked(request.path, data, request.headers, self._mean_output)
            self.bodies_seen.append(want.body)
            rank = self._shape.pinned(request.path, want, request.headers, setting)
        except InputError as error:
            return self._error(400, str(error))
        except RefusedError as refused:
            if want.stream and not want.chat and self._shape.refuses_in_stream:
                self.answers[200] += 1
                event = b"data: " + json.dumps(refused.document).encode() + b"\n\ndata: [DONE]\n\n"
                return web.Response(body=event, content_type="text/event-stream", charset="utf-8")
            self.answers[refused.status] += 1
            return web.json_response(refused.document, status=refused.status)
        pinned = rank is not None
        if rank is None:
            port = setting.rank_of_port
            rank = port if port >= 0 else self._shape.balanced(self.core, self._turn)
            self._turn += 1
        counts = self._by_rank[rank]
        counts["requests"] += 1
        counts["pinned"] += pinned
        refused_by = await self._befall(rank)
        if refused_by is not None:
            counts["refused"] += 1
            return refused_by
        return await self._serve(request, want, rank, setting)

    async def _befall(self, rank: int) -> web.StreamResponse | None:
        lost = self.faults.active("rank_lost")
        if lost is not None and lost.rank == rank:
            return self._error(
                500, "EngineCore encountered an issue. See stack trace (above) for the root cause."
            )
        fault = self.faults.take(("status", "hang", "slow_answer"), rank)
        if fault is None:
            return None
        if fault.kind == "status":
            more = {"Retry-After": str(max(round(fault.seconds), 1))} if fault.seconds > 0 else {}
            return self._error(fault.status, "the mock engine was told to refuse", more)
        if fault.kind == "slow_answer":
            await asyncio.sleep(fault.seconds)
            return None
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hanging.add(waiting)
        try:
            await waiting
        finally:
            self._hanging.discard(waiting)
        return None

    async def _serve(
        self, request: web.Request, want: Asked, rank: int, setting: Setting
    ) -> web.StreamResponse:
        counts = self._by_rank[rank]
        job = Job(rank, want.prompt_tokens, want.output_tokens)
        try:
            self.core.submit(job)
        except InputError as error:
            return self._error(400, str(error))
        answer = Answer(want, job.number, setting.model, self._shape.extra(want, rank, setting))
        response: web.StreamResponse | None = None
        how = "gone"
        try:
            transport = None
            if want.stream:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                response.enable_chunked_encoding()
                await response.prepare(request)
                transport = request.transport
            stream = Stream(answer, transport, self.faults.take(STREAM_FAULTS, rank) if want.stream else None)
            stream.opened()
            job.on_token = stream.token
            self._streams[job.number] = stream
            self._work.set()
            how = await stream.over
        finally:
            self._streams.pop(job.number, None)
            if how != "finished":
                self.core.abort(job)
            counts["finished" if how == "finished" else "aborted"] += 1
        self.answers[200] += 1
        if response is None:
            if how != "finished":
                return self._error(500, "the engine failed")
            return web.json_response(answer.document(job.made))
        if how in ("finished", "cut"):
            await response.write_eof()
        return response

    def _error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
        self.answers[status] += 1
        return web.json_response(self._shape.error(status, message), status=status, headers=headers)
