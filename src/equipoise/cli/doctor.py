"""`equipoise doctor`: does everything work here? One paste answers most support questions."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from cyclopts import App

from equipoise.cli.options import Json

__all__ = ["app"]

app = App(name="doctor", help="Check this installation: versions, compiled kernel, cache, extras.")

NEEDED = ("numpy", "numba", "scipy", "polars", "msgspec", "pydantic", "cyclopts", "rich")
EXTRAS = {
    "plotly": "report",
    "matplotlib": "report",
    "jinja2": "report",
    "optuna": "tune",
    "aiohttp": "serve",
    "uvloop": "serve",
    "prometheus-client": "serve",
}


@app.default
def doctor(*, as_json: Json = False) -> int:
    """Check this installation; the exit code is 1 if something is broken."""
    checks = [
        ("equipoise", True, _version("equipoise")),
        ("python", sys.version_info >= (3, 11), platform.python_version()),
    ]
    for name in NEEDED:
        found = _version(name)
        checks.append((name, found != "missing", found))
    for name, extra in EXTRAS.items():
        found = _version(name)
        checks.append(
            (
                name,
                True,
                found
                if found != "missing"
                else f"not installed: pip install 'equipoise[{extra}]', in a checkout '.[{extra}]'",
            )
        )
    checks += [_attempt("compiled kernel", _kernel), _attempt("compile cache", _cache)]
    good = all(ok for _, ok, _ in checks)
    if as_json:
        rows = [{"check": name, "ok": ok, "detail": detail} for name, ok, detail in checks]
        print(json.dumps({"schema": "equipoise.doctor/1", "ok": good, "checks": rows}, indent=2))
    else:
        for name, ok, detail in checks:
            print(f"{'ok  ' if ok else 'FAIL'}  {name:16} {detail}")
    return 0 if good else 1


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _attempt(name: str, check: Callable[[], str]) -> tuple[str, bool, str]:
    try:
        return name, True, check()
    except Exception as error:
        return name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _kernel() -> str:
    """Load the kernel and hold a small run against the slow twin."""
    from equipoise.cost import load
    from equipoise.replay import Pool, replay
    from equipoise.traces import synth

    began = time.perf_counter()
    trace = synth("chat-short", requests=400, seed=1)
    runs = [
        replay(trace, Pool(ranks=4), "dualpath", load("v2"), concurrency=16, engine=e)
        for e in ("kernel", "reference")
    ]
    if runs[0].outcome.totals.tobytes() != runs[1].outcome.totals.tobytes():
        raise RuntimeError("the compiled kernel and its slow twin disagree on this machine")
    return f"agrees with its slow twin ({time.perf_counter() - began:.1f} s with loading)"


def _cache() -> str:
    from equipoise.replay.kernel import run

    path = getattr(run._cache, "cache_path", None)
    return (
        f"in {path}"
        if path
        else "no writable folder: the kernel is compiled at every start (set NUMBA_CACHE_DIR)"
    )
