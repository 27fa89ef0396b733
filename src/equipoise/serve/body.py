"""Reads the body of a request, within limits, and refuses one that cannot be read without doubt."""

from __future__ import annotations

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from equipoise.serve.exchange import Failure

__all__ = ["read_body"]


async def read_body(request: web.BaseRequest, limit: int, held: int = 0, most_held: int = 1 << 62) -> bytes:
    """The whole body.

    Parameters
    ----------
    request : aiohttp.web.BaseRequest
    limit : int
        Bytes; more is answered with 413.
    held, most_held : int
        Bytes of bodies held at the moment, and how many may be; more is answered with 429.

    Raises
    ------
    Failure
        Too large, compressed, or framed wrongly.
    ConnectionError
        The client has left.
    """
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Failure(415, "body_encoding", "bodies are not taken compressed")
    length = request.headers.get("Content-Length")
    if length is not None and length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise Failure(413, "body_too_large", f"bodies are limited to {limit} bytes")
    if held + int(length or 0) > most_held:
        raise Failure(429, "bodies", "as many bytes of requests are held as may")
    content, parts, size = request.content, [], 0
    try:
        while chunk := await content.readany():
            size += len(chunk)
            if size > limit:
                raise Failure(413, "body_too_large", f"bodies are limited to {limit} bytes")
            if held + size > most_held:
                raise Failure(429, "bodies", "as many bytes of requests are held as may")
            parts.append(chunk)
    except (HttpProcessingError, web.RequestPayloadError) as error:
        raise Failure(400, "framing", "the body is framed wrongly") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)
