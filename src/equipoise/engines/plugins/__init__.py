"""Inside an engine: a policy of the registry in place of the engine's own balancer.

Entry points of this package, off unless asked for by an environment variable; `equipoise.engines.plugins.options` lists
all of them. Nothing here imports an engine before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.engines.plugins.book import Book
    from equipoise.engines.plugins.options import Options, read_options
    from equipoise.engines.plugins.peers import Peers

__all__ = ["Book", "Options", "Peers", "read_options"]

__getattr__ = lazy(__name__, {"book": ("Book",), "options": ("Options", "read_options"), "peers": ("Peers",)})
