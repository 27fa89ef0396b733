"""Answers that are ours and not an engine's: one form for every refusal, with its reason in a header."""

from __future__ import annotations

import msgspec
from aiohttp import web

from equipoise.router import Reject

__all__ = ["REASON", "json_answer", "refusal", "refused_by_router", "sse_error"]

REASON = "x-equipoise-reason"
"""Header with the reason code of a refusal."""

NAME = "equipoise"
"""What the Server header says: not what it is made of."""

_encode = msgspec.json.Encoder().encode

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "invalid_request_error",
    411: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
"""``type`` of an error, in OpenAI's words, by status."""

WORDS = {
    "queue_requests": "as many requests wait as may",
    "queue_tokens": "as many prompt tokens wait as may",
    "queue_bytes": "as many bytes wait as may",
    "queue_timeout": "the request waited for room as long as it may",
    "too_many": "as many requests run as the router keeps",
    "no_instance": "no engine can serve now",
    "draining": "the router sends nothing more: it is being drained",
    "too_large": "the prompt is larger than any rank's KV cache",
    "bad_length": "the prompt is empty or its length is no count of tokens",
    "duplicate": "a request of that id is queued or running",
    "cancelled": "the request was cancelled",
    "no_owner": "no router places on any engine now",
    "owner_unreachable": "the router that places on the engine does not answer",
    "no_other_room": "no other engine has room for a second try",
}


def json_answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON document."""
    return web.Response(
        body=_encode(value),
        status=status,
        headers={"Server": NAME} | (headers or {}),
        content_type="application/json",
    )


def error_body(status: int, reason: str, message: str) -> bytes:
    """What OpenAI's clients expect of an error."""
    kind = KINDS.get(status, "server_error")
    return _encode({"error": {"message": message, "type": kind, "code": reason, "param": None}})


def refusal(
    status: int, reason: str, message: str, *, retry_after_s: float = 0.0, close: bool = False
) -> web.Response:
    """A refusal of ours.

    Parameters
    ----------
    status : int
    reason : str
        Its code, in the header `REASON` and in the body.
    message : str
        For a person.
    retry_after_s : float
        0: no word of it.
    close : bool
        Whether the connection is of no more use.
    """
    headers = {REASON: reason, "Server": NAME}
    if retry_after_s > 0:
        headers["Retry-After"] = str(max(round(retry_after_s), 1))
    answer = web.Response(
        body=error_body(status, reason, message),
        status=status,
        headers=headers,
        content_type="application/json",
    )
    if close:
        answer.force_close()
    return answer


def refused_by_router(reject: Reject) -> web.Response:
    """The router's own refusal."""
    return refusal(
        reject.status,
        reject.reason,
        WORDS.get(reject.reason, reject.reason),
        retry_after_s=reject.retry_after_s,
    )


def sse_error(status: int, reason: str, message: str) -> bytes:
    """The last event of a stream that cannot go on."""
    return b"data: " + error_body(status, reason, message) + b"\n\n"
