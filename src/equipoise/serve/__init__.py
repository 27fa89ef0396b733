"""The servers: the router on an event loop, before real engines. Needs the extra ``serve``.

`Driver` drives the router; `proxy` carries the bytes, `decide` only says where they are to go; `watch` reads engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.serve.config import ServeConfig
    from equipoise.serve.config_file import read_config
    from equipoise.serve.driver import Driver, Lease
    from equipoise.serve.service import Service

__all__ = ["Driver", "Lease", "ServeConfig", "Service", "read_config"]

__getattr__ = lazy(
    __name__,
    {
        "config": ("ServeConfig",),
        "config_file": ("read_config",),
        "driver": ("Driver", "Lease"),
        "service": ("Service",),
    },
)
