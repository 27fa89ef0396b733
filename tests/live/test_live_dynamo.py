"""A live run against Dynamo's mocker, DP4: pins are kept, counts are exact, steps come out in the table's order.

Skipped unless EQUIPOISE_DYNAMO_VENV names an environment that scripts/install-dynamo-mocker made.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

aiohttp = pytest.importorskip("aiohttp", reason="pip install 'equipoise[serve]'")

sys.path.insert(0, str(Path(__file__).parent.parent / "engines"))

from dynamo_processes import cost_table, dynamo, environment  # noqa: E402

from equipoise.engines import WorkerSpec  # noqa: E402
from equipoise.live.parts import read_folder  # noqa: E402
from equipoise.live.plan import LivePlan  # noqa: E402
from equipoise.live.run import LiveRun  # noqa: E402
from equipoise.traces import Trace  # noqa: E402

pytestmark = pytest.mark.proof

RANKS = 4


def test_every_policy_on_the_mocker(tmp_path: Path) -> None:
    environment()
    rng = np.random.default_rng(0)
    n = 48
    trace = Trace.from_columns(
        "mixture", np.cumsum(rng.exponential(0.02, n)), rng.choice([40, 4000], n), rng.integers(20, 60, n)
    )
    policies = ("least_batch", "least_tokens", "engine")

    async def main() -> None:
        async with (
            aiohttp.ClientSession() as session,
            dynamo(tmp_path, RANKS, session, "--planner-profile-data", str(cost_table(tmp_path))) as (
                api,
                system,
            ),
        ):
            plan = LivePlan(
                trace=trace,
                workers=(WorkerSpec(api, metrics_url=system),),
                engine="dynamo",
                policies=policies,
                repeats=1,
                mode="closed",
                concurrency=24,
            )
            about = await LiveRun(plan, tmp_path / "live").run()
            assert about.state == "complete"
            assert about.engine.instances[0].ranks == RANKS
            assert about.engine.instances[0].kv_capacity_tokens == 16384 * 64

    asyncio.run(main())
    found = read_folder(tmp_path / "live")
    rows = found.requests
    assert len(rows) == n * len(policies)
    assert set(rows["outcome"]) == {"ok"}
    assert set(rows["rank"]) == set(range(RANKS))  # of `engine`, as Dynamo says
    assert (rows["itl_ms"].list.len() + 1 == rows["output_tokens"]).mean() > 0.9
    # The order of the table: steps under heavy loads take longer than those under light ones.
    steps = (
        found.steps.group_by("step")
        .agg(pl.col("context_tokens").max(), pl.col("prefill_tokens").sum(), pl.col("time_ms").first())
        .filter(pl.col("prefill_tokens") == 0)
    )
    light = steps.filter(pl.col("context_tokens") < 2_000)["time_ms"].median()
    heavy = steps.filter(pl.col("context_tokens") > 30_000)["time_ms"].median()
    assert light is not None
    assert heavy is not None
    assert heavy > 1.15 * light  # type: ignore[operator]
