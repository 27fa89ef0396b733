"""Control inside the engine: how many drafts each request verifies, so that no rank waits for nothing.

`allocate` plans one step of an instance; `VerifyPrice` is what a step costs by query tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.control.acceptance import Acceptance
    from equipoise.control.chunks import ChunkPlan, Prompts, chunks_for_budget, chunks_for_time
    from equipoise.control.evaluate import Worth, worth
    from equipoise.control.exact import best_by_enumeration
    from equipoise.control.freezes import Freezes
    from equipoise.control.pauses import Pauses
    from equipoise.control.plan import Plan
    from equipoise.control.price import VerifyPrice
    from equipoise.control.run import ControlRun
    from equipoise.control.shared import OwnCurve, SharedPlan, agree, message_bytes
    from equipoise.control.simulation import simulate_control
    from equipoise.control.state import RankDrafts, Snapshot
    from equipoise.control.verify import allocate, allocate_verify

__all__ = [
    "Acceptance",
    "ChunkPlan",
    "ControlRun",
    "Freezes",
    "OwnCurve",
    "Pauses",
    "Plan",
    "Prompts",
    "RankDrafts",
    "SharedPlan",
    "Snapshot",
    "VerifyPrice",
    "Worth",
    "agree",
    "allocate",
    "allocate_verify",
    "best_by_enumeration",
    "chunks_for_budget",
    "chunks_for_time",
    "message_bytes",
    "simulate_control",
    "worth",
]

__getattr__ = lazy(
    __name__,
    {
        "acceptance": ("Acceptance",),
        "verify": ("allocate", "allocate_verify"),
        "chunks": ("ChunkPlan", "Prompts", "chunks_for_budget", "chunks_for_time"),
        "evaluate": ("Worth", "worth"),
        "exact": ("best_by_enumeration",),
        "freezes": ("Freezes",),
        "pauses": ("Pauses",),
        "plan": ("Plan",),
        "price": ("VerifyPrice",),
        "shared": ("OwnCurve", "SharedPlan", "agree", "message_bytes"),
        "run": ("ControlRun",),
        "simulation": ("simulate_control",),
        "state": ("RankDrafts", "Snapshot"),
    },
)
