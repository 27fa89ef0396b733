"""What the proxy costs beside others and none, in one run: ``python bench/router/proxy.py [ROUNDS] [SECONDS]``.

Beside it: a bare aiohttp pass-through, nginx if it is on the path, and `sglang-router` and `vllm-router` if
``--routers VENV`` names an environment that has them. Prints req/s, SSE chunks/s, how late a paced chunk is, and the
processor time of the proxy's process and its children; medians over the rounds, the range of the ratios beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PARTIES = str(Path(__file__).with_name("parties.py"))
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
NGINX = """daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e; keepalive_requests 1000000;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 2048; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def started(*arguments):
    process = subprocess.Popen([sys.executable, PARTIES, *arguments], stdout=subprocess.PIPE, text=True)
    return process, json.loads(process.stdout.readline())["port"]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def nginx(engine_port):
    folder, port = tempfile.mkdtemp(), free_port()
    Path(folder, "conf").write_text(NGINX.format(folder=folder, engine=engine_port, port=port))
    return answering(["nginx", "-p", folder, "-e", f"{folder}/error.log", "-c", f"{folder}/conf"], port)


def other_router(name, venv, upstream):
    port = free_port()
    ranks = ["--dp-aware"] if name == "sglang-router" else ["--intra-node-data-parallel-size", "8"]
    start = [f"{venv}/bin/python", "-m", "sglang_router.launch_router"]
    command = start if name == "sglang-router" else [f"{venv}/bin/vllm-router"]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker-urls",
        upstream,
        "--policy",
        "round_robin",
    ]
    command += [
        "--prometheus-host",
        "127.0.0.1",
        "--prometheus-port",
        str(free_port()),
        "--log-level",
        "error",
    ]
    return answering([*command, *ranks], port)


def answering(command, port):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen([str(word) for word in command], **quiet)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "a"}]}).encode()
    headers = {"Content-Type": "application/json"}
    for _ in range(120):
        try:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
            with urllib.request.urlopen(asked, timeout=2) as answer:
                if answer.status == 200:
                    return process, port
        except OSError:
            time.sleep(0.25)
    sys.exit(f"does not answer: {' '.join(map(str, command))}")


def cpu_s(process):
    """Of a process and its children."""
    total, group = 0.0, {process.pid}
    for stat in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda p: int(p.parent.name)):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        if pid in group or int(fields[1]) in group:
            group.add(pid)
            total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


def loaded(process, port, streams, seconds, chunks, interval_ms):
    before = cpu_s(process)
    arguments = [sys.executable, PARTIES, "load", port, streams, seconds, chunks, interval_ms]
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    found["cpu_s"] = cpu_s(process) - before
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("seconds", type=float, nargs="?", default=4.0)
    parser.add_argument("--routers", help="environment with sglang-router and vllm-router")
    asked = parser.parse_args()
    rounds, seconds = asked.rounds, asked.seconds
    engine, engine_port = started("engine")
    upstream = f"http://127.0.0.1:{engine_port}"
    parties = {"direct": (engine, engine_port)}
    parties["bare"] = started("bare", upstream)
    parties["equipoise"] = started("ours", upstream, "8")
    if shutil.which("nginx"):
        parties["nginx"] = nginx(engine_port)
    for name in ("sglang-router", "vllm-router") if asked.routers else ():
        parties[name] = other_router(name, asked.routers, upstream)
    who_all = tuple(parties)
    cases = {
        "req/s, 32 at once": (32, seconds, 0, 0),
        "req/s, 1 at once": (1, seconds / 2, 0, 0),
        "SSE chunks/s, 32 streams": (32, seconds, 100, 0),
        "SSE chunks/s, 256 streams": (256, seconds, 100, 0),
        "paced, 1,000 streams, 5/s each": (1000, seconds, 20, 200),
    }
    found = {case: {who: [] for who in who_all} for case in cases}
    decided = []
    try:
        for k in range(rounds):
            for case, arguments in cases.items():
                order = who_all if k % 2 else tuple(reversed(who_all))
                for who in order:
                    found[case][who].append(loaded(*parties[who], *arguments))
            print(f"round {k + 1} of {rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            arguments = [sys.executable, PARTIES, "decide", str(parties["equipoise"][1]), str(seconds / 2)]
            done = subprocess.run(arguments, capture_output=True, text=True, check=True)
            decided.append(json.loads(done.stdout))
    finally:
        for who, (process, _) in parties.items():
            if who in ("direct", "bare", "equipoise"):
                process.terminate()
            else:
                os.killpg(process.pid, signal.SIGTERM)
    for case, runs in found.items():
        show(case, runs)
    p50 = sorted(one["p50_ms"] for one in decided)
    p99 = statistics.median(one["p99_ms"] for one in decided)
    print(
        f"POST /v1/decide: p50 {statistics.median(p50):.2f} ms ({p50[0]:.2f}-{p50[-1]:.2f}), p99 {p99:.2f} ms"
    )


def show(case, runs):
    """A line a party: rate, beside the bare one, milliseconds added to none, processor time."""
    unit = "chunks" if "chunk" in case or "paced" in case else "requests"
    key = "late_p50_ms" if "paced" in case else "p50_ms"
    print(f"{case}\n  {'':14} {unit + '/s':>12} {'beside bare':>18} {'added ms':>9} {'CPU us':>7}")
    rates = {who: [r[unit] / r["spent_s"] for r in runs[who]] for who in runs}
    for who, rate in rates.items():
        ratios = [o / b for o, b in zip(rate, rates["bare"], strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        added = statistics.median(o[key] - d[key] for o, d in zip(runs[who], runs["direct"], strict=True))
        cpu = statistics.median(1e6 * r["cpu_s"] / max(r[unit], 1) for r in runs[who])
        shown = ("", "") if who == "direct" else (f"{added:9.2f}", f"{cpu:7.0f}")
        print(f"  {who:14} {statistics.median(rate):12,.0f} {spread:>18} {shown[0]:>9} {shown[1]:>7}")


if __name__ == "__main__":
    main()
