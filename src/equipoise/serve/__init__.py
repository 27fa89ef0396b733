"""The servers: the router on an event loop, before real engines. Needs the extra ``serve``.

`Driver` drives the router; `proxy` carries the bytes, `decide` only says where they are to go; `watch` reads engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.serve.driver import Driver, Lease

__all__ = ["Driver", "Lease"]

__getattr__ = lazy(__name__, {"driver": ("Driver", "Lease")})
