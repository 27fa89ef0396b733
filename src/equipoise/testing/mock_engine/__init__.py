"""A mock engine: R ranks in lock-step behind real HTTP, in the shape of vLLM, SGLang or Dynamo, with faults on command.

Needs the extra ``serve``. From a test::

    from equipoise.testing.mock_engine import MockEngine

    async with MockEngine("vllm", ranks=4, cost="h200", speed_up=10) as engine:
        engine.faults.add("reset", count=1, after_tokens=3)

From a shell: ``python -m equipoise.testing.mock_engine --engine sglang --ranks 4 --speed-up 10 --port 8000``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.testing.mock_engine.core import Job, LockStep, State
    from equipoise.testing.mock_engine.faults import Fault, Faults
    from equipoise.testing.mock_engine.server import MockEngine

__all__ = ["Fault", "Faults", "Job", "LockStep", "MockEngine", "State"]

__getattr__ = lazy(
    __name__,
    {
        "core": ("Job", "LockStep", "State"),
        "faults": ("Fault", "Faults"),
        "server": ("MockEngine",),
    },
)
