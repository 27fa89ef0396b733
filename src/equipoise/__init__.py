"""Equipoise: balance the decode ranks of large mixture-of-experts LLM deployments.

Rooms are imported when first used::

    import equipoise

    trace = equipoise.traces.synth("agentic-coding", requests=40_000, seed=1, steady_state=2048)
    result = equipoise.replay(trace, equipoise.Pool(ranks=64), "dualpath,z=1.05", equipoise.cost.load("v1"))
    print(result.excess)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise import cost, errors, models, policies, report, study, traces
    from equipoise.replay import Pool, ReplayResult, replay

__all__ = [
    "Pool",
    "ReplayResult",
    "cost",
    "errors",
    "models",
    "policies",
    "replay",
    "report",
    "study",
    "traces",
]

_FROM_REPLAY = ("Pool", "ReplayResult")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    if name in _FROM_REPLAY:
        value = getattr(importlib.import_module("equipoise.replay"), name)
    else:
        value = importlib.import_module(f"equipoise.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
