"""The same study on a Ray cluster of this machine, in a network namespace of its own with nothing but loopback.

Ray does not start beside xds-protos, which the other tests need, so it has an environment of its own:
``scripts/install-ray`` makes it, ``EQUIPOISE_RAY_PYTHON`` names its Python.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from equipoise.errors import InputError
from equipoise.study.ray_runner import on_ray

pytestmark = pytest.mark.proof

PYTHON = os.environ.get("EQUIPOISE_RAY_PYTHON", "")
ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c")
"""A plain start of Ray listens on every interface; in here there is only one."""

SCRIPT = """
ip link set lo up
ray start --head --block --node-ip-address 127.0.0.1 --port 6399 --num-cpus 2 --include-dashboard=false \
    --disable-usage-stats --temp-dir "$RAY_HOME" > "$LOG" 2>&1 &
head=$!
"$PYTHON" "$DRIVER"
code=$?
kill $head
wait $head
exit $code
"""

DRIVER = """
import json, os, sys, time
from dataclasses import replace
from pathlib import Path

from equipoise.cost import load
from equipoise.errors import EngineError
from equipoise.policies import parse
from equipoise.replay import Pool
from equipoise.study import ComparePlan, compare, summarize, to_json
from equipoise.study.checkpoint import Checkpoint
from equipoise.study.ray_runner import on_ray

work = Path(os.environ["WORK"])
plan = ComparePlan(
    traces=["chat-short"], costs=[load("v1")], policies=[parse("least_batch"), parse("random")],
    pool=Pool(ranks=4), concurrency=32, requests=600, seeds=2,
)
end = time.monotonic() + 90
while True:  # the head takes a while to answer
    try:
        there = compare(plan, runner=on_ray("127.0.0.1:6399"))
        break
    except EngineError:
        if time.monotonic() > end:
            raise
        time.sleep(1)
found = {"same": to_json(summarize(there)) == to_json(summarize(compare(plan)))}

(work / "own.py").write_text(
    "def place(ranks, requests, prices, params, memory, out):\\n"
    "    for i in range(len(out)):\\n"
    "        out[i] = len(ranks.batch) if ranks.batch[0] > 5 else 0\\n"
    "        ranks.batch[0] += 1\\n"
)
failing = replace(plan, policies=[*plan.policies, parse(str(work / "own.py") + ":place")])
checkpoint = Checkpoint(work / "kept")
try:
    compare(failing, runner=on_ray("127.0.0.1:6399", checkpoint))
except EngineError as error:
    found["failed"] = str(error)
found["kept"] = len(list((work / "kept").glob("*.json")))
ticks = []
resumed = compare(plan, runner=on_ray("127.0.0.1:6399", checkpoint), progress=lambda n, of: ticks.append(n))
found["resumed"] = to_json(summarize(resumed)) == to_json(summarize(there))
found["ticks"] = ticks
(work / "found.json").write_text(json.dumps(found))
"""


def _alone() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*ALONE, "ip link set lo up"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(
    not PYTHON, reason="scripts/install-ray FOLDER, then EQUIPOISE_RAY_PYTHON=FOLDER/bin/python"
)
@pytest.mark.skipif(
    not _alone(), reason="needs a network namespace: Ray would listen on every interface otherwise"
)
def test_a_cluster_gives_the_same_bytes_reports_failures_and_resumes(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    # Sockets of the cluster have paths of at most 107 bytes: the folder of the test is too deep.
    short = Path(tempfile.gettempdir()) / f"ray-{secrets.token_hex(4)}"
    environment = {
        **os.environ,
        "PATH": f"{Path(PYTHON).absolute().parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_HOME": str(short),
        "LOG": str(tmp_path / "ray.log"),
        "PYTHON": str(Path(PYTHON).absolute()),
        "DRIVER": str(driver),
        "WORK": str(tmp_path),
    }
    process = subprocess.Popen(
        [*ALONE, SCRIPT],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(2)
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(short, ignore_errors=True)
    assert process.returncode == 0, output.decode()[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["same"]
    assert "2 runs failed" in found["failed"]
    assert "own:place" in found["failed"]
    assert found["kept"] == 4
    assert found["resumed"]
    assert found["ticks"] == [1, 2, 3, 4]


def test_a_cluster_has_to_be_named() -> None:
    with pytest.raises(InputError, match="--ray-address: no address of a cluster"):
        on_ray(None)
