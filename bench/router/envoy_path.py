"""What asking the picker costs: the same Envoy with it and without, and no Envoy at all, in one interleaved run.

``EQUIPOISE_ENVOY=.../envoy python bench/router/envoy_path.py [ROUNDS] [SECONDS]``. Per path:
req/s and p50 at 1 and 16 at once, chunks/s of 300 paced streams, CPU a request of Envoy and of the picker; medians over
the rounds, ranges of what is compared.
The machine is shared by load, engine, Envoy (one worker thread) and picker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTIES = str(Path(__file__).with_name("parties.py"))
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
WHO = ("direct", "plain", "picked", "picked, no log")
RANKS = 8


async def picker(engine_port, address):
    """The whole service: it reads the engine's metrics four times a second as well."""
    from equipoise.engines import WorkerSpec
    from equipoise.serve.config import ServeConfig
    from equipoise.serve.envoy.service import PickerService, picker_config
    from equipoise.serve.run import settle_collector

    config = picker_config(
        ServeConfig(
            workers=(WorkerSpec(f"http://127.0.0.1:{engine_port}", ranks=RANKS),), port=0, admin_port=0
        )
    )
    async with PickerService(config, address):
        settle_collector()
        print(json.dumps({"port": 0}), flush=True)
        await asyncio.Event().wait()


def started(*arguments):
    process = subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    return process, json.loads(process.stdout.readline())["port"]


def free_port():
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def without_picker(text):
    """The same file, but its requests go round robin."""
    start, end = (
        text.index("          - name: envoy.filters.http.ext_proc"),
        text.index("          - name: envoy.filters.http.router"),
    )
    text = text[:start] + text[end:]
    text = re.sub(r"\n +typed_per_filter_config: (\*unasked|&unasked(\n {18,}.*)+)", "", text)
    return text.replace("&generate {cluster: workers", "&generate {cluster: any_worker")


def envoy(folder, engine_port, picker_address, change=lambda text: text, **options):
    from equipoise.serve.envoy import EnvoyOptions, envoy_config

    port = free_port()
    made = EnvoyOptions(
        workers=[f"http://127.0.0.1:{engine_port}"],
        listen=f"127.0.0.1:{port}",
        admin="",
        pickers=[picker_address],
        **options,
    )
    file = Path(folder) / f"{port}.yaml"
    file.write_text(change(envoy_config(made)))
    process = subprocess.Popen(
        [
            os.environ["EQUIPOISE_ENVOY"],
            "-c",
            file,
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-l",
            "error",
        ]
    )
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return process, port
        time.sleep(0.05)
    sys.exit("Envoy did not come up")


def cpu_s(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def loaded(watched, port, streams, seconds, chunks, interval_ms):
    before = [cpu_s(one) for one in watched]
    arguments = [sys.executable, PARTIES, "load", port, streams, seconds, chunks, interval_ms]
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    found["cpu_us"] = [
        1e6 * (cpu_s(one) - b) / max(found["requests"], 1) for one, b in zip(watched, before, strict=True)
    ]
    return found


def main(rounds=3, seconds=3.0):
    cases = {
        "1 at once": (1, seconds / 2, 0, 0),
        "16 at once": (16, seconds, 0, 0),
        "300 streams, 100 chunks, one every 20 ms": (300, seconds, 100, 20),
        "300 streams, 10 chunks, one every 200 ms": (300, seconds, 10, 200),
    }
    found = {case: {who: [] for who in WHO} for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        engine, engine_port = started(PARTIES, "engine")
        address = f"127.0.0.1:{free_port()}"
        asked, _ = started(__file__, "picker", engine_port, address)
        parties = {
            "direct": (engine, engine_port),
            "plain": envoy(folder, engine_port, address, without_picker, access_log=False),
            "picked": envoy(folder, engine_port, address),
            "picked, no log": envoy(folder, engine_port, address, access_log=False),
        }
        try:
            for k in range(rounds):
                for case, arguments in cases.items():
                    for who in WHO if k % 2 else tuple(reversed(WHO)):
                        process, port = parties[who]
                        found[case][who].append(loaded((process, asked), port, *arguments))
                print(f"round {k + 1} of {rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        finally:
            for process in (asked, *(process for process, _ in parties.values())):
                process.terminate()
    for case, runs in found.items():
        columns = f"{'req/s':>8} {'chunks/s':>9} {'p50 ms':>7} {'Envoy us':>9} {'picker us':>10}"
        print(f"\n{case}\n{'':16} {columns}  beside plain")
        for who in WHO:
            print(row(who, runs))


def row(who, runs):
    def middle(key):
        return statistics.median(r[key] for r in runs[who])

    rate = statistics.median(r["requests"] / r["spent_s"] for r in runs[who])
    chunks = statistics.median(r["chunks"] / r["spent_s"] for r in runs[who])
    own, python = (statistics.median(r["cpu_us"][k] for r in runs[who]) for k in (0, 1))
    counted = "chunks" if chunks else "requests"
    pairs = list(zip(runs[who], runs["plain"], strict=True))
    ratios = [(a[counted] / a["spent_s"]) / (b[counted] / b["spent_s"]) for a, b in pairs]
    added = [a["p50_ms"] - b["p50_ms"] for a, b in pairs]
    beside = f"x{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    beside += f", p50 {statistics.median(added):+.2f} ms ({min(added):+.2f} to {max(added):+.2f})"
    shown = f"{python:10.0f}" if who.startswith("picked") else f"{'':10}"
    envoys = f"{own:9.0f}" if who != "direct" else f"{'':9}"
    return f"{who:16} {rate:8,.0f} {chunks:9,.0f} {middle('p50_ms'):7.2f} {envoys} {shown}  {beside}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["picker"]:
        import uvloop

        uvloop.run(picker(*sys.argv[2:]))
    else:
        main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
