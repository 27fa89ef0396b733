"""Control inside the engine: how many drafts each request verifies, so that no rank waits for nothing.

`allocate` plans one step of an instance; `VerifyPrice` is what a step costs by query tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.control.allocate import allocate, allocate_verify
    from equipoise.control.evaluate import Worth, worth
    from equipoise.control.exact import best_by_enumeration
    from equipoise.control.plan import Plan
    from equipoise.control.price import VerifyPrice
    from equipoise.control.state import RankDrafts, Snapshot

__all__ = [
    "Plan",
    "RankDrafts",
    "Snapshot",
    "VerifyPrice",
    "Worth",
    "allocate",
    "allocate_verify",
    "best_by_enumeration",
    "worth",
]

__getattr__ = lazy(
    __name__,
    {
        "allocate": ("allocate", "allocate_verify"),
        "evaluate": ("Worth", "worth"),
        "exact": ("best_by_enumeration",),
        "plan": ("Plan",),
        "price": ("VerifyPrice",),
        "state": ("RankDrafts", "Snapshot"),
    },
)
