"""Replay: a trace through a pool under a policy, priced by a step cost.

The package is callable: ``equipoise.replay(trace, pool, policy, cost)`` is `equipoise.replay.engine.replay`. Python
binds a subpackage to its parent under the very name of the function users call, whichever is imported first; so the
name has to be both.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from equipoise.replay.engine import SnapshotPlan, replay
from equipoise.replay.information import Information
from equipoise.replay.pool import Pool
from equipoise.replay.result import Percentiles, ReplayResult, Snapshots

__all__ = ["Information", "Percentiles", "Pool", "ReplayResult", "SnapshotPlan", "Snapshots", "replay"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> ReplayResult:
        return replay(*args, **kwargs)


_Callable.__call__.__doc__ = replay.__doc__
sys.modules[__name__].__class__ = _Callable
