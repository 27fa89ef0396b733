"""Keeps other people's web pages off the admin port: a browser on the machine would let them in by the back door.

A page from anywhere can make its visitor's browser send a POST to 127.0.0.1, and with a name of its own that resolves
to 127.0.0.1 it can read the answers too. Browsers say where a request comes from; whoever is no browser says nothing
and is not asked.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web

from equipoise.serve.answers import refusal
from equipoise.serve.edge import Handler, Routes

__all__ = ["own_pages_only"]

FOREIGN = ("cross-site", "same-site")


def own_pages_only(routes: Routes, free: frozenset[str], names: frozenset[str] | None) -> Routes:
    """The same routes, refused to pages of other sites.

    Parameters
    ----------
    routes : mapping of str to mapping of str to handler
        Path to method to handler.
    free : frozenset of str
        Paths that show nothing worth keeping, and may be linked to.
    names : frozenset of str, optional
        Names that the port goes by beside addresses and ``localhost``; none: by any, for it asks for a token.
    """

    def guard(handler: Handler) -> Handler:
        async def guarded(request: web.BaseRequest, path: str) -> web.StreamResponse:
            if foreign(request, names):
                words = "this page is not one of the router's; pages of other sites may not look or act here"
                return refusal(403, "foreign_page", words, close=True)
            return await handler(request, path)

        return guarded

    return {
        path: methods if path in free else {method: guard(h) for method, h in methods.items()}
        for path, methods in routes.items()
    }


def foreign(request: web.BaseRequest, names: frozenset[str] | None) -> bool:
    """Whether a request comes from a page that is not ours."""
    headers = request.headers
    if headers.get("Sec-Fetch-Site") in FOREIGN:
        return True
    host = headers.get("Host", "")
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return True
    return names is not None and not _known(host, names)


def _known(host: str, names: frozenset[str]) -> bool:
    """Whether a Host is an address, or a name that nobody else can have."""
    name = host.lower().partition(":")[0]
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    if name in ("", "localhost") or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
