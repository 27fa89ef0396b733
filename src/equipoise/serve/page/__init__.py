"""The live page: what the router sees and does, as it happens; ``/ui`` on the admin port."""

from __future__ import annotations

from equipoise.serve.page.feed import Feed
from equipoise.serve.page.site import PAGE, Site

__all__ = ["PAGE", "Feed", "Site"]
