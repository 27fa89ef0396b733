"""The mock engine's HTTP side: one event loop, R ranks in lock-step, faults on command, and a record of what it saw."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from equipoise.cost import load as load_cost
from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError, nearest
from equipoise.testing.mock_engine.answers import Answer
from equipoise.testing.mock_engine.core import Job, LockStep
from equipoise.testing.mock_engine.faults import Faults
from equipoise.testing.mock_engine.requests import Asked, asked
from equipoise.testing.mock_engine.shapes import SHAPES, Dynamo, Picture, RefusedError, Setting, Sglang, Vllm
from equipoise.testing.mock_engine.streams import Stream

try:
    from aiohttp import web
except ImportError as missing:
    raise ImportError("the mock engine needs aiohttp: pip install 'equipoise[serve]'") from missing

__all__ = ["MockEngine"]

KEPT_HEADERS = 1000
"""Requests whose headers are remembered."""
MAX_LATE_S = 1.0
"""Behind its clock by more than this, it forgets what it owes."""
SETTING: web.AppKey[Setting] = web.AppKey("setting", Setting)
STREAM_FAULTS = ("reset", "cut", "bad_chunk", "error_event")


class MockEngine:
    """An engine of R ranks over real HTTP.

    ::

        async with MockEngine("vllm", ranks=4, cost=load("h200"), speed_up=10) as engine:
            ...                                     # engine.url, engine.urls, engine.faults, engine.seen()

    Parameters
    ----------
    engine : {"vllm", "sglang", "dynamo"}
    ranks : int
    cost : StepCost or str
        What a step costs.
    speed_up : float
        Divides the time between steps; ``inf``: as fast as they come.
    kv_capacity_tokens, max_batch : int
        Of a rank.
    ports : {"one", "per-rank"}
        One address for all ranks, or one a rank.
    first_rank : int
        Number of its first rank in the deployment.
    numbering : {"local", "global"}
        What a rank number means to a vLLM front-end where ``first_rank`` is above 0.
    publish_steps : int, optional
        Steps between two pictures in metrics and loads; default: the engine's own (SGLang 15, others 1).
    prefill_us_per_token : float
        See `equipoise.testing.mock_engine.LockStep`.
    mean_output_tokens : float
        Where above 0, requests without ``ignore_eos`` end by themselves after about so many tokens.
    manual : bool
        No step is done but by `step`: what a test wants that asserts on steps.
    port : int
        Of the first address; 0: any free one.
    """

    def __init__(
        self,
        engine: str = "vllm",
        *,
        ranks: int = 2,
        cost: StepCost | str = "h200",
        speed_up: float = 1.0,
        kv_capacity_tokens: int = 1 << 20,
        max_batch: int = 256,
        block_tokens: int = 16,
        ports: Literal["one", "per-rank"] = "one",
        first_rank: int = 0,
        numbering: str = "local",
        publish_steps: int | None = None,
        prefill_us_per_token: float = 0.0,
        mean_output_tokens: float = 0.0,
        model: str = "tiny",
        header_overrides: bool = False,
        manual: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if engine not in SHAPES:
            raise InputError(
                f"no engine is called {engine!r}", where="mock engine", fix=nearest(engine, SHAPES)
            )
        if not speed_up > 0:
            raise InputError(f"speed_up = {speed_up}", where="mock engine", fix="it must be above 0")
        if ports not in ("one", "per-rank"):
            raise InputError(f"ports = {ports!r}", where="mock engine", fix="use 'one' or 'per-rank'")
        self.kind = engine
        self.core = LockStep(
            ranks,
            load_cost(cost) if isinstance(cost, str) else cost,
            kv_capacity_tokens=kv_capacity_tokens,
            max_batch=max_batch,
            prefill_us_per_token=prefill_us_per_token,
        )
        self.faults = Faults()
        self.urls: tuple[str, ...] = ()
        self.system_url = ""
        self._shape: Vllm | Sglang = SHAPES[engine]()
        self._publish_steps = self._shape.publish_steps if publish_steps is None else publish_steps
        self._setting = Setting(
            model, ranks, first_rank, numbering, block_tokens, 7_000_000_000_000_000_001, header_overrides
        )
        self._speed_up, self._mean_output = speed_up, mean_output_tokens
        self._ports, self._host, self._port = ports, host, port
        self._manual = manual
        self._picture = Picture.of(self.core)
        self._pictured_at = 0
        self._streams: dict[int, Stream] = {}
        self._work = asyncio.Event()
        self._turn = 0
        self._runners: list[web.AppRunner] = []
        self._driver: asyncio.Task[None] | None = None
        self._hanging: set[asyncio.Future[None]] = set()
        self.headers_seen: deque[dict[str, str]] = deque(maxlen=KEPT_HEADERS)
        """Headers of the last requests that generate, names in lower case, oldest first."""
        self.bodies_seen: deque[Mapping[str, Any]] = deque(maxlen=KEPT_HEADERS)
        """Bodies of the same requests."""
        self.answers: Counter[int] = Counter()
        """How many answers had which status."""
        self._by_rank = [Counter[str]() for _ in range(ranks)]
        self.late_s = 0.0
        """Time it could not keep up with its clock."""

    @property
    def url(self) -> str:
        """Its first address."""
        return self.urls[0]

    @property
    def worker_id(self) -> str:
        """Dynamo's instance id of the worker."""
        return str(self._setting.worker_id)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.core.ranks

    async def __aenter__(self) -> MockEngine:
        """Start to listen."""
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Listen; addresses are known afterwards."""
        count = self.core.ranks if self._ports == "per-rank" else 1
        urls = []
        for i in range(count):
            setting = replace(self._setting, rank_of_port=i) if self._ports == "per-rank" else self._setting
            urls.append(await self._listen(self._app(setting), self._port + i if self._port else 0))
        self.urls = tuple(urls)
        if self.kind == "dynamo":
            app = web.Application()
            app.router.add_get("/metrics", self._system_metrics)
            self.system_url = await self._listen(app, self._port + count if self._port else 0)
        if not self._manual:
            self._driver = asyncio.create_task(self._drive())

    async def stop(self) -> None:
        """Reset every stream and close."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
            self._driver = None
        self.clear_faults()
        for stream in list(self._streams.values()):
            stream.reset()
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    def step(self, steps: int = 1) -> None:
        """Do steps at once, whatever the clock says."""
        for _ in range(steps):
            self.core.begin()
            self._end_step()

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

    # Steps

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.core.busy or self._stalled():
                self._work.clear()
                self._publish()
                await self._work.wait()
                due = max(due, loop.time())
                continue
            due += self.core.begin() / self._speed_up
            if math.isinf(self._speed_up):
                await asyncio.sleep(0)
            else:
                behind = loop.time() - due
                if behind > MAX_LATE_S:
                    self.late_s += behind
                    due += behind
                await asyncio.sleep(max(-behind, 0.0))
            self._end_step()

    def _end_step(self) -> None:
        self.core.end()
        if self.core.steps - self._pictured_at >= self._publish_steps or not self.core.busy:
            self._publish()

    def _publish(self) -> None:
        if self.faults.active("freeze_metrics") is None:
            self._picture = Picture.of(self.core)
            self._pictured_at = self.core.steps

    def _stalled(self) -> bool:
        return self.faults.active("stall") is not None or self.faults.active("rank_lost") is not None

    def _break_lost(self) -> None:
        fault = self.faults.active("rank_lost")
        if fault is not None:
            for job in [j for j in self.core.jobs() if j.rank == fault.rank]:
                self._streams[job.number].reset()

    # Requests

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

    # Pages

    async def _page(self, make: Callable[[], str]) -> web.Response:
        slow = self.faults.active("slow_metrics")
        if slow is not None:
            await asyncio.sleep(slow.seconds)
        down = self.faults.active("metrics_down")
        if down is not None:
            return web.Response(status=down.status)
        if not self.core.busy:
            self._publish()  # idle engines publish all the time
        if self.faults.active("bad_metrics") is not None:
            return web.Response(text='vllm:num_requests_running{engine="x"} many\n{"loads":')
        return web.Response(text=make())

    async def _metrics(self, request: web.Request) -> web.Response:
        setting: Setting = request.app[SETTING]
        if isinstance(self._shape, Dynamo):
            frontend = self._shape
            return await self._page(lambda: frontend.frontend(self._picture, self.core, setting))
        return await self._page(lambda: self._shape.metrics(self._picture, self.core, setting))

    async def _system_metrics(self, request: web.Request) -> web.Response:
        return await self._page(lambda: self._shape.metrics(self._picture, self.core, self._setting))

    async def _loads(self, request: web.Request) -> web.Response:
        shape = self._shape
        assert isinstance(shape, Sglang)
        return await self._page(
            lambda: json.dumps(shape.loads(self._picture, self.core, request.app[SETTING]))
        )

    async def _server_info(self, request: web.Request) -> web.Response:
        setting: Setting = request.app[SETTING]
        ranks = 1 if setting.rank_of_port >= 0 else setting.ranks
        return web.json_response({"dp_size": ranks, "enable_dp_attention": True, "model_path": setting.model})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._setting.model, "object": "model"}]})

    async def _health(self, request: web.Request) -> web.Response:
        if self._stalled():
            return web.Response(status=503)
        if isinstance(self._shape, Dynamo):
            return web.json_response(self._shape.health(self._setting))
        return web.Response()

    # Control

    async def _fault(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            try:
                self.faults.add_from(json.loads(await request.read()))
            except (InputError, ValueError) as error:
                return web.json_response({"error": str(error)}, status=400)
            self._break_lost()
        elif request.method == "DELETE":
            self.clear_faults(request.query.get("kind"))
        return web.json_response(self.faults.listed())

    async def _seen(self, request: web.Request) -> web.Response:
        return web.json_response({**self.seen(), "headers": list(self.headers_seen)[-50:]})

    def _app(self, setting: Setting) -> web.Application:
        app = web.Application(client_max_size=256 << 20)
        app[SETTING] = setting
        routes: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/health": self._health,
            "/seen": self._seen,
        }
        if self.kind == "sglang":
            routes |= {"/v1/loads": self._loads, "/server_info": self._server_info}
        for path, handler in routes.items():
            app.router.add_get(path, handler)
        for path in ("/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, self._generate)
        if self.kind == "sglang":
            app.router.add_post("/generate", self._generate)
        app.router.add_route("*", "/fault", self._fault)
        return app

    async def _listen(self, app: web.Application, port: int) -> str:
        # A client that goes away cancels its request, and that aborts the job: engines do so too.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, self._host, port, backlog=8192)
        await site.start()
        server = site._server
        sockets: tuple[socket.socket, ...] = getattr(server, "sockets", ())
        return f"http://{self._host}:{sockets[0].getsockname()[1]}"
