"""Verify lengths inside vLLM and SGLang: what `equipoise.control` needs of their schedulers, and what it gives.

Nothing here imports an engine before it is asked to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.engines.verify.dspark_log import LoggedStep, read_dspark_log
    from equipoise.engines.verify.learnt import LearntSurvivals
    from equipoise.engines.verify.rank import RankControl, survival_of

__all__ = ["LearntSurvivals", "LoggedStep", "RankControl", "read_dspark_log", "survival_of"]

__getattr__ = lazy(
    __name__,
    {
        "dspark_log": ("LoggedStep", "read_dspark_log"),
        "learnt": ("LearntSurvivals",),
        "rank": ("RankControl", "survival_of"),
    },
)
