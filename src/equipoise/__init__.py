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
    from equipoise import (
        control,
        cost,
        engines,
        errors,
        fleet,
        models,
        policies,
        report,
        router,
        study,
        traces,
    )
    from equipoise.fleet import Deployment, FleetResult, simulate
    from equipoise.replay import Pool, ReplayResult, replay
    from equipoise.router import Router

__all__ = [
    "Deployment",
    "FleetResult",
    "Pool",
    "ReplayResult",
    "Router",
    "control",
    "cost",
    "engines",
    "errors",
    "fleet",
    "models",
    "policies",
    "replay",
    "report",
    "router",
    "simulate",
    "study",
    "traces",
]

_FROM = {
    "Deployment": "fleet",
    "FleetResult": "fleet",
    "Pool": "replay",
    "ReplayResult": "replay",
    "Router": "router",
    "simulate": "fleet",
}
"""Names that live in a room."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    if name in _FROM:
        value = getattr(importlib.import_module(f"equipoise.{_FROM[name]}"), name)
    else:
        value = importlib.import_module(f"equipoise.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
