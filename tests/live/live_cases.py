"""Live runs against a mock engine in the same process, on a virtual clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="pip install 'equipoise[serve]'")

from virtual_time import run_virtually

from equipoise.engines import WorkerSpec
from equipoise.live.about import About
from equipoise.live.plan import LivePlan
from equipoise.live.run import LiveRun
from equipoise.testing.mock_engine import MockEngine
from equipoise.traces import Trace

MODEL = "tiny"


def some_trace(requests: int = 24, *, seed: int = 0, gap_s: float = 0.05, most_tokens: int = 12) -> Trace:
    """Short and long prompts, a few tokens each."""
    rng = np.random.default_rng(seed)
    return Trace.from_columns(
        "some",
        np.cumsum(rng.exponential(gap_s, requests)) - 0.0,
        rng.choice([20, 60, 900], requests),
        rng.integers(1, most_tokens + 1, requests),
    )


def plan_for(engine: MockEngine, trace: Trace, **changes: Any) -> LivePlan:
    """A plan for a mock engine: nothing but the runs, unless said otherwise."""
    metrics = engine.system_url
    made: dict[str, Any] = {
        "trace": trace,
        "workers": (WorkerSpec(engine.url, metrics_url=metrics),),
        "engine": engine.kind,
        "policies": ("least_batch",),
        "repeats": 1,
        "probe": False,
        "warmup_requests": 0,
        "timeout_s": 60.0,
        "drain_timeout_s": 5.0,
    }
    return LivePlan(**{**made, **changes})


Act = Callable[[MockEngine, LiveRun], Awaitable[None]]


def run_live(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    trace: Trace,
    *,
    kind: str = "vllm",
    meanwhile: Act | None = None,
    about: About | None = None,
    before: Callable[[MockEngine], None] | None = None,
    engine_options: dict[str, Any] | None = None,
    said: list[str] | None = None,
    **changes: Any,
) -> tuple[About, MockEngine]:
    """Run a plan to its end; the mock as it was then."""
    import asyncio

    async def main() -> tuple[About, MockEngine]:
        async with MockEngine(kind, **{"ranks": 3, **(engine_options or {})}) as engine:
            if before is not None:
                before(engine)
            plan = plan_for(engine, trace, **changes)
            runner = LiveRun(plan, folder, about, say=(said if said is not None else []).append)
            beside = asyncio.create_task(meanwhile(engine, runner)) if meanwhile is not None else None
            try:
                return await runner.run(), engine
            finally:
                if beside is not None:
                    beside.cancel()
                    await asyncio.gather(beside, return_exceptions=True)

    return run_virtually(main(), monkeypatch)
