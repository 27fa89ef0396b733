"""Compile all that is shipped compiled, in two processes side by side: ``python scripts/compile_kernels.py``.

What is compiled is kept on disk. On a machine that has none of it yet, test processes that start together would each
compile the same kernels; after this they find them. Takes a second where nothing has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing import get_context


def fleet() -> None:
    """The kernel of deployments: as long to compile as all the others together."""
    from equipoise.fleet.kernel.run import fleet_run

    fleet_run()


def others() -> None:
    """The kernel of replay, the built-in policies, the fit's inner loop, the oracle's search."""
    from equipoise.policies import spec
    from equipoise.policies.registry import BUILT_IN

    oracle = ("study.oracle.descent", "study.oracle.playback")
    for module in ("replay.kernel", "calibrate._assign", "policies.dualpath_auto", *oracle):
        import_module(f"equipoise.{module}")
    for name in BUILT_IN:
        spec(name)


def main() -> int | str:
    tasks: tuple[Callable[[], None], ...] = (fleet, others)
    processes = [get_context("spawn").Process(target=task, name=task.__name__) for task in tasks]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [p.name for p in processes if p.exitcode != 0]
    return f"compiling failed: {', '.join(failed)}" if failed else 0


if __name__ == "__main__":
    sys.exit(main())
