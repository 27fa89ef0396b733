"""How much the load generator of ``equipoise live`` can carry, and how late its stamps are. Prints a Markdown table.

Usage: ``python bench/live_load.py [RUNS]``. A mock engine of its own process, on one core, writes a token to every
stream at every step and keeps when; the generator runs on another core. Both read the same monotonic clock, so the lag
of a token is the time from its write to its stamp: two event loops, the loopback, and the wait behind other streams.
The 50th, 90th and 99th percentile of ITL, TPOT, TTFT and end-to-end time that the generator reports are held against
those of the engine's own record.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS = ((64, 20.0), (64, 50.0), (256, 50.0), (1000, 100.0), (2000, 200.0), (2000, 100.0))
"""Streams, and milliseconds of a step."""
SECONDS = 4.0
"""Of decoding."""
PERCENTILES = (0.5, 0.9, 0.99)
FILES = 16_384


def pin(core: int) -> None:
    """Stay on one processor, where that can be asked for."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, FILES), hard))
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


def serve(step_ms: float, record: str) -> None:
    """The mock engine; at its end it writes down when it wrote what."""
    import uvloop

    from equipoise.cost import StepCost, Term
    from equipoise.testing.mock_engine import Job, MockEngine
    from equipoise.testing.mock_engine.streams import Stream

    pin(0)
    times: dict[int, list[float]] = {}
    inner = Stream.token

    def token(self: Stream, job: Job) -> None:
        times.setdefault(job.prompt_tokens, []).append(time.monotonic())
        inner(self, job)

    Stream.token = token  # type: ignore[method-assign]

    async def main() -> None:
        cost = StepCost(
            name="constant",
            unit="us",
            constant=step_ms * 1e3,
            terms=(Term("none", per_request=1e-9),),
        )
        async with MockEngine("vllm", ranks=8, cost=cost, max_batch=1024) as engine:
            print(engine.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)
            document = {"late_s": engine.late_s, "times": {str(k): v for k, v in times.items()}}
            Path(record).write_text(json.dumps(document))

    uvloop.run(main())


def measure(streams: int, step_ms: float) -> dict[str, Any]:
    """One setting, once."""
    import uvloop

    from equipoise.engines import WorkerSpec
    from equipoise.live.load import Load
    from equipoise.live.parts import read_folder
    from equipoise.live.plan import LivePlan
    from equipoise.live.run import LiveRun
    from equipoise.traces import Trace

    tokens = max(int(SECONDS * 1e3 / step_ms), 20)
    begun: list[float] = []
    spent: list[float] = []
    inner = Load.run

    async def run(self: Load) -> None:
        begun.append(self.start_s)
        before = time.process_time()
        await inner(self)
        spent.append(time.process_time() - before)

    with tempfile.TemporaryDirectory() as name:
        record = Path(name) / "record.json"
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(step_ms), str(record)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdin is not None
        url = child.stdout.readline().strip()
        pin(1)
        trace = Trace.from_columns(
            "all", np.arange(streams) * 1e-3, np.arange(streams) + 100, np.full(streams, tokens)
        )
        plan = LivePlan(
            trace=trace,
            workers=(WorkerSpec(url),),
            policies=("least_batch",),
            repeats=1,
            mode="closed",
            concurrency=streams,
            probe=False,
            warmup_requests=0,
        )
        Load.run = run  # type: ignore[method-assign]
        try:
            uvloop.run(LiveRun(plan, Path(name) / "live").run())
        finally:
            Load.run = inner  # type: ignore[method-assign]
            child.stdin.close()
            child.wait(60)
        wrote = json.loads(record.read_text())
        rows = read_folder(Path(name) / "live").requests.sort("request")
    lags = []
    reported: dict[str, list[Any]] = {name: [] for name in ("ITL", "TPOT", "TTFT", "end to end")}
    known: dict[str, list[Any]] = {name: [] for name in reported}
    for row in rows.iter_rows(named=True):
        true = np.array(wrote["times"][str(100 + row["request"])])
        if row["outcome"] == "ok" and len(row["itl_ms"]) == len(true) - 1:
            own = row["first_token_s"] + np.concatenate([[0.0], np.cumsum(row["itl_ms"]) / 1e3])
            true = true - begun[0]
            lags.append(own - true)
            for times, into in ((own, reported), (true, known)):
                into["ITL"].append(np.diff(times))
                into["TPOT"].append([(times[-1] - times[0]) / (len(times) - 1)])
                into["TTFT"].append([times[0] - row["intended_s"]])
                into["end to end"].append([times[-1] - row["intended_s"]])
    lag_ms = np.concatenate(lags) * 1e3
    return {
        "streams": streams,
        "step_ms": step_ms,
        "chunks_per_s": streams / step_ms * 1e3,
        "lost": streams - int((rows["outcome"] == "ok").sum()),
        "bundled": streams - len(lags),
        "lag_ms": np.quantile(lag_ms, [0.5, 0.99, 1.0]).tolist(),
        "off": off(reported, known),
        "cpu_us_per_chunk": spent[0] / (streams * tokens) * 1e6,
        "engine_late_s": wrote["late_s"],
    }


def off(reported: dict[str, list[Any]], known: dict[str, list[Any]]) -> list[float]:
    """Of each percentile of each number: how far off it is, in units of what is allowed (1 % or 1 ms)."""
    found = []
    for name in known:
        mine, true = (np.quantile(np.concatenate(x[name]), PERCENTILES) for x in (reported, known))
        found += (np.abs(mine - true) / np.maximum(0.01 * true, 1e-3)).tolist()
    return found


def main() -> None:
    """Every setting in a process of its own."""
    if sys.argv[1:2] == ["--serve"]:
        serve(float(sys.argv[2]), sys.argv[3])
        return
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]), float(sys.argv[3]))))
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(
        "| streams | step, ms | chunks/s | lost | percentiles within 1 % or 1 ms | lag p50, ms | lag p99, ms "
        "| CPU a chunk, us |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for streams, step_ms in SETTINGS:
        found = []
        for _ in range(runs):
            command = [sys.executable, __file__, "--measure", str(streams), str(step_ms)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout))
        p50, p99, cpu = (
            spread([pick(one) for one in found])
            for pick in (
                lambda one: one["lag_ms"][0],
                lambda one: one["lag_ms"][1],
                lambda one: one["cpu_us_per_chunk"],
            )
        )
        lost = max(one["lost"] for one in found)
        rate = found[0]["chunks_per_s"]
        good = [sum(x <= 1 for x in one["off"]) for one in found]
        within = (
            f"{min(good)} to {max(good)} of {len(found[0]['off'])}"
            if min(good) < max(good)
            else f"{good[0]} of {len(found[0]['off'])}"
        )
        print(
            f"| {streams} | {step_ms:g} | {rate:,.0f} | {lost} | {within} | {p50} | {p99} | {cpu} |",
            flush=True,
        )


def spread(values: list[float]) -> str:
    """Median, least and greatest."""
    return f"{np.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
