"""What is asked of an engine: the body of a request of exact length, and what its refusals mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from equipoise.errors import InputError
from equipoise.live.rows import Outcome

__all__ = ["ROUTES", "body", "check_route", "head", "refusal"]

ROUTES = ("/v1/completions", "/generate")
"""Where requests can be sent; the second is SGLang's own, and names the rank in the body."""

LONG = re.compile(
    r"context length|context window|maximum (?:model )?length|max_model_len|longer than|too long|a rank holds",
    re.I,
)
RANK = re.compile(r"rank|worker", re.I)


def body(
    route: str,
    model: str,
    prompt: bytes,
    output_tokens: int,
    *,
    engine: str,
    fields: Iterable[tuple[str, int]] = (),
) -> bytes:
    """A request that is answered with exactly so many tokens, as a stream with exact counts at its end.

    Parameters
    ----------
    route : str
    model : str
    prompt : bytes
        JSON: a list of token ids or a text.
    output_tokens : int
    engine : str
        Dynamo is asked for the rank that served.
    fields : pairs of str and int
        Of the pin.
    """
    own = b"".join(b',"%b":%d' % (name.encode(), value) for name, value in fields)
    if route == "/generate":
        name = b"input_ids" if prompt.startswith(b"[") else b"text"
        return (
            b'{"%b":%b,"stream":true,"sampling_params":{"max_new_tokens":%d,"ignore_eos":true,"temperature":0}%b}'
            % (name, prompt, output_tokens, own)
        )
    if engine == "dynamo":
        own += b',"nvext":{"extra_fields":["worker_id"]}'
    return (
        b'{"model":%b,"prompt":%b,"max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true,'
        b'"stream_options":{"include_usage":true}%b}'
        % (json.dumps(model).encode(), prompt, output_tokens, own)
    )


def head(
    host: str, route: str, length: int, headers: Iterable[tuple[str, str]] = (), key: str | None = None
) -> bytes:
    """Request line and headers."""
    lines = [
        f"POST {route} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Content-Length: {length}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def refusal(engine: str, status: int, text: str, *, pinned: bool) -> Outcome:
    """What an answer with an error says.

    Parameters
    ----------
    engine : str
    status : int
    text : str
        Beginning of the body.
    pinned : bool
        Whether the request named a rank.
    """
    if status == 429:
        return Outcome.REFUSED_429
    if status in (400, 413, 422) and LONG.search(text):
        return Outcome.TOO_LONG
    unknown_worker = engine == "dynamo" and status == 400
    if pinned and status in (400, 404, 422, 500) and (RANK.search(text) or unknown_worker):
        return Outcome.PIN_REFUSED
    return Outcome.REFUSED


def check_route(route: str, engine: str) -> None:
    """Raise `InputError` where an engine has no such route."""
    if route not in ROUTES or (route == "/generate" and engine != "sglang"):
        fix = f"use {' or '.join(ROUTES)}" if engine == "sglang" else f"use {ROUTES[0]}"
        raise InputError(f"{route!r} is no route of {engine}", where="--route", fix=fix)
