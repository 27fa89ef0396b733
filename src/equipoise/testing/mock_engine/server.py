"""The mock engine's HTTP side: one event loop, R ranks in lock-step, faults on command, and a record of what it saw."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

from equipoise.cost import load as load_cost
from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError, nearest
from equipoise.testing.mock_engine.core import LockStep
from equipoise.testing.mock_engine.pages import Pages
from equipoise.testing.mock_engine.shapes import SHAPES, Setting

try:
    from aiohttp import web
except ImportError as missing:
    raise ImportError("the mock engine needs aiohttp: pip install 'equipoise[serve]'") from missing

__all__ = ["MockEngine"]


class MockEngine(Pages):
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
        core = LockStep(
            ranks,
            load_cost(cost) if isinstance(cost, str) else cost,
            kv_capacity_tokens=kv_capacity_tokens,
            max_batch=max_batch,
            prefill_us_per_token=prefill_us_per_token,
        )
        setting = Setting(
            model, ranks, first_rank, numbering, block_tokens, 7_000_000_000_000_000_001, header_overrides
        )
        super().__init__(
            engine,
            core,
            SHAPES[engine](),
            setting,
            host,
            speed_up=speed_up,
            publish_steps=publish_steps,
            mean_output_tokens=mean_output_tokens,
        )
        self.urls: tuple[str, ...] = ()
        self.system_url = ""
        self._ports, self._port = ports, port
        self._manual = manual
        self._driver: asyncio.Task[None] | None = None

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
