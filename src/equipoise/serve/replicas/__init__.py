"""Several routers before one pool: every instance has one that places, the others ask it. Needs Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners
    from equipoise.serve.replicas.ownership import Ownership, Timing
    from equipoise.serve.replicas.spread import plan
    from equipoise.serve.replicas.store import RedisStore

__all__ = ["Owners", "Ownership", "RedisStore", "Timing", "plan"]

__getattr__ = lazy(
    __name__,
    {
        "owners": ("Owners",),
        "ownership": ("Ownership", "Timing"),
        "spread": ("plan",),
        "store": ("RedisStore",),
    },
)
