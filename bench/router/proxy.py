"""What the proxy costs beside a bare aiohttp pass-through and no proxy at all, in one interleaved run.

``python bench/router/proxy.py [ROUNDS] [SECONDS]``: a table of req/s, SSE chunks/s, how late a paced chunk is, and CPU
per chunk of the proxy's process; medians over the rounds, the range of the ratios beside them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

PARTIES = str(Path(__file__).with_name("parties.py"))
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
WHO = ("direct", "bare", "equipoise")


def started(*arguments):
    process = subprocess.Popen([sys.executable, PARTIES, *arguments], stdout=subprocess.PIPE, text=True)
    return process, json.loads(process.stdout.readline())["port"]


def cpu_s(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def loaded(process, port, streams, seconds, chunks, interval_ms):
    before = cpu_s(process)
    arguments = [sys.executable, PARTIES, "load", port, streams, seconds, chunks, interval_ms]
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    found["cpu_s"] = cpu_s(process) - before
    return found


def main(rounds=5, seconds=4.0):
    engine, engine_port = started("engine")
    upstream = f"http://127.0.0.1:{engine_port}"
    parties = {"direct": (engine, engine_port)}
    parties["bare"] = started("bare", upstream)
    parties["equipoise"] = started("ours", upstream, "8")
    cases = {
        "req/s, 32 at once": (32, seconds, 0, 0),
        "req/s, 1 at once": (1, seconds / 2, 0, 0),
        "SSE chunks/s, 32 streams": (32, seconds, 100, 0),
        "SSE chunks/s, 256 streams": (256, seconds, 100, 0),
        "paced, 1,000 streams, 5/s each": (1000, seconds, 20, 200),
    }
    found = {case: {who: [] for who in WHO} for case in cases}
    decided = []
    try:
        for k in range(rounds):
            for case, arguments in cases.items():
                order = WHO if k % 2 else tuple(reversed(WHO))
                for who in order:
                    found[case][who].append(loaded(*parties[who], *arguments))
            print(f"round {k + 1} of {rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            arguments = [sys.executable, PARTIES, "decide", str(parties["equipoise"][1]), str(seconds / 2)]
            done = subprocess.run(arguments, capture_output=True, text=True, check=True)
            decided.append(json.loads(done.stdout))
    finally:
        for process, _ in parties.values():
            process.terminate()
    names = f"{'direct':>10} {'bare':>10} {'equipoise':>10}"
    print(f"{'case':32} {names} {'ratio to bare':>16} {'added ms':>9} {'CPU us':>13}")
    for case, runs in found.items():
        print(row(case, runs))
    p50 = sorted(one["p50_ms"] for one in decided)
    p99 = statistics.median(one["p99_ms"] for one in decided)
    print(
        f"POST /v1/decide: p50 {statistics.median(p50):.2f} ms ({p50[0]:.2f}-{p50[-1]:.2f}), p99 {p99:.2f} ms"
    )


def row(case, runs):
    unit = "chunks" if "chunk" in case or "paced" in case else "requests"
    rates = {who: [r[unit] / r["spent_s"] for r in runs[who]] for who in WHO}
    ratios = [o / b for o, b in zip(rates["equipoise"], rates["bare"], strict=True)]
    key = "late_p50_ms" if "paced" in case else "p50_ms"
    added = statistics.median(o[key] - d[key] for o, d in zip(runs["equipoise"], runs["direct"], strict=True))
    cpu = {
        who: statistics.median(1e6 * r["cpu_s"] / max(r[unit], 1) for r in runs[who])
        for who in ("bare", "equipoise")
    }
    values = " ".join(f"{statistics.median(rates[who]):10,.0f}" for who in WHO)
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    return f"{case:32} {values} {spread:>16} {added:9.2f} {cpu['bare']:5.0f} / {cpu['equipoise']:.0f}"


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
