"""Carries a live run out on an event loop, and says how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.cli.progress import progress
from equipoise.errors import EngineError

if TYPE_CHECKING:
    from equipoise.live.about import About
    from equipoise.live.plan import LivePlan

__all__ = ["carry_out", "finish"]


def carry_out(plan: LivePlan, folder: Path, about: About | None, *, quiet: bool) -> About:
    """Run it on an event loop; signals end it in order."""
    from equipoise._interrupts import Stopped
    from equipoise.live.about import About
    from equipoise.live.run import LiveRun

    came: list[int] = []

    async def main(tell: Any) -> About:
        def say(line: str) -> None:
            if not quiet:
                print(line, file=sys.stderr, flush=True)

        runner = LiveRun(plan, folder, about, say=say, tell=tell or (lambda done, total: None))
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def end(number: int) -> None:
            came.append(number)
            runner.stop(f"signal {signal.Signals(number).name}")
            if (len(came) > 1 or not runner.running) and task is not None:
                task.cancel()

        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            with contextlib.suppress(AttributeError, NotImplementedError):  # Windows has neither
                loop.add_signal_handler(getattr(signal, name), end, getattr(signal, name))
        return await runner.run()

    try:
        with progress("live", "requests", quiet=quiet) as tell:
            found = _loop()(main(tell))
    except asyncio.CancelledError:
        found = None
    if came:
        where = f"equipoise: what was measured is in {folder}; continue with --resume {folder}"
        if (folder / "run.json").exists():
            print(where, file=sys.stderr, flush=True)
        raise KeyboardInterrupt if came[0] == signal.SIGINT else Stopped(came[0])
    assert isinstance(found, About)
    return found


def _loop() -> Any:
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run
    return uvloop.run


def finish(folder: Path, about: About, *, as_json: bool) -> int:
    """Say what there is now."""
    from equipoise.live.tables import print_runs, runs_document

    if as_json:
        import json

        print(json.dumps(runs_document(folder, about), indent=2))
    else:
        from rich.console import Console

        print_runs(folder, about, Console())
    if about.state != "complete":
        raise EngineError(f"{about.notes[-1] if about.notes else 'stopped'} Continue with --resume {folder}")
    return 0
