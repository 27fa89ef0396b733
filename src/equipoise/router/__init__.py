"""The router: events in, actions out. The simulated policy places real requests, on an exact ledger.

`Router` is a state machine without a clock or sockets; what carries bytes and reads engines is built on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.router.core import Router
    from equipoise.router.decisions import Decision, DecisionLog
    from equipoise.router.events import (
        Abort,
        Action,
        Arrival,
        Dispatch,
        InstanceSpec,
        RankReport,
        RankSpec,
        Reject,
    )
    from equipoise.router.lengths import PromptLengths
    from equipoise.router.reasons import (
        HARMLESS,
        STATUS,
        AbortReason,
        InstanceState,
        PlaceReason,
        RejectReason,
        Rung,
    )
    from equipoise.router.settings import Settings
    from equipoise.router.shadows import Shadow, ShadowView
    from equipoise.router.view import Integrity, RouterView

__all__ = [
    "HARMLESS",
    "STATUS",
    "Abort",
    "AbortReason",
    "Action",
    "Arrival",
    "Decision",
    "DecisionLog",
    "Dispatch",
    "InstanceSpec",
    "InstanceState",
    "Integrity",
    "PlaceReason",
    "PromptLengths",
    "RankReport",
    "RankSpec",
    "Reject",
    "RejectReason",
    "Router",
    "RouterView",
    "Rung",
    "Settings",
    "Shadow",
    "ShadowView",
]

__getattr__ = lazy(
    __name__,
    {
        "core": ("Router",),
        "decisions": ("Decision", "DecisionLog"),
        "events": (
            "Abort",
            "Action",
            "Arrival",
            "Dispatch",
            "InstanceSpec",
            "RankReport",
            "RankSpec",
            "Reject",
        ),
        "lengths": ("PromptLengths",),
        "reasons": (
            "HARMLESS",
            "STATUS",
            "AbortReason",
            "InstanceState",
            "PlaceReason",
            "RejectReason",
            "Rung",
        ),
        "settings": ("Settings",),
        "shadows": ("Shadow", "ShadowView"),
        "view": ("Integrity", "RouterView"),
    },
)
