"""`Site`: the page itself, and the stream of messages behind it.

The page is one file without anything from elsewhere; what it may load and run is said in its headers, by the hashes of
its own style and script. It holds no data, so it is open; the stream is guarded as everything on the admin port is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from importlib.resources import files

from aiohttp import web

from equipoise.serve.answers import json_answer, refusal
from equipoise.serve.edge import Routes
from equipoise.serve.page.feed import Feed

__all__ = ["PAGE", "Site"]

PAGE = "/ui"
MOST_WATCHERS = 64
SLOW_S = 30.0
"""A watcher that takes nothing for so long is let go."""


class Site:
    """The handlers.

    Parameters
    ----------
    feed : Feed
    """

    def __init__(self, feed: Feed) -> None:
        self.feed, self.watchers = feed, 0
        self._page = files(__package__).joinpath("live.html").read_bytes()
        self._headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": policy_of(self._page.decode("utf-8")),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }

    def routes(self) -> Routes:
        """Path to method to handler."""
        return {
            "/ui": {"GET": self.page},
            "/ui/events": {"GET": self.events},
            "/ui/state": {"GET": self.state},
        }

    async def page(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """The page."""
        return web.Response(body=self._page, headers=self._headers)

    async def state(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """One message, for scripts."""
        return json_answer(self.feed.state())

    async def events(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """A message a second, until the watcher leaves."""
        if self.watchers >= MOST_WATCHERS:
            return refusal(
                429, "watchers", f"{MOST_WATCHERS} pages watch already", retry_after_s=5, close=True
            )
        self.watchers += 1
        try:
            answer = web.StreamResponse(
                headers={
                    "Content-Type": "text/event-stream",
                    "Cache-Control": "no-store",
                    "X-Accel-Buffering": "no",  # nginx
                }
            )
            answer.force_close()
            await answer.prepare(request)
            while True:
                await asyncio.wait_for(answer.write(self.feed.event()), SLOW_S)
                await asyncio.sleep(self.feed.period_s)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            return answer
        finally:
            self.watchers -= 1


def policy_of(page: str) -> str:
    """What a page may load: itself, its own style and script by their hashes, and the stream it came with."""
    hashes = {}
    for tag in ("style", "script"):
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        hashes[tag] = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; style-src {hashes['style']}; script-src {hashes['script']}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
