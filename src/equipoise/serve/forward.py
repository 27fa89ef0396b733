"""What of a request and of an answer passes through, and what is ours to set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from multidict import CIMultiDict

from equipoise.engines import Pin, is_pin, set_fields
from equipoise.engines.headers import PIN_FIELDS
from equipoise.errors import InputError
from equipoise.serve.answers import NAME

__all__ = ["answer_headers", "pinned_body", "request_headers"]

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    }
)
"""Of one connection, not of the message (RFC 9110 section 7.6.1)."""
OURS = frozenset({"host", "content-length", "accept-encoding", "expect"})
"""Set anew towards the engine. Answers are asked for uncompressed, or tokens could not be counted."""
NOT_BACK = frozenset({"content-length", "date", "server", "alt-svc"})

NVEXT = frozenset({"backend_instance_id", "decode_worker_id", "dp_rank", "decode_dp_rank"})
NVEXT_PREFILL = frozenset({"prefill_worker_id", "prefill_dp_rank"})
"""Fields of Dynamo's ``nvext`` that choose a worker."""

MOST_NAMES = 4096
_BACK: dict[str, bool] = {}
"""Whether a header of an answer passes, by name as it was written."""

_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


PASS, DROP, NAMED, KEY, IDENTITY, AGENT = range(6)
_KINDS: dict[bool, dict[str, int]] = {False: {}, True: {}}
"""What is done with a header, by name as it was written; by whether clients are a proxy that chose the prefill side."""


def _kind(name: str, behind_pd_proxy: bool) -> int:
    """What is done with a header of this name, looked at once a spelling."""
    low = name.lower()
    kind = PASS
    if low == "connection":
        kind = NAMED
    elif low == "authorization":
        kind = KEY
    elif low == "x-request-id":
        kind = IDENTITY
    elif low == "user-agent":
        kind = AGENT
    elif low in HOP_BY_HOP or low in OURS or is_pin(low, behind_pd_proxy=behind_pd_proxy):
        kind = DROP
    kinds = _KINDS[behind_pd_proxy]
    if len(kinds) < MOST_NAMES:
        kinds[name] = kind
    return kind


def request_headers(
    headers: Mapping[str, str],
    request_id: str,
    key: str | None,
    *,
    keep_authorization: bool,
    behind_pd_proxy: bool,
) -> list[tuple[str, str]]:
    """Headers for the engine, without the pin.

    Parameters
    ----------
    headers : multidict of str to str
        The client's.
    request_id : str
        Set as ``x-request-id`` where the client has none.
    key : str, optional
        The engine's own key.
    keep_authorization : bool
        Whether the client's key is meant for the engine; one meant for us stays here.
    behind_pd_proxy : bool
        Whether headers about the prefill side pass.
    """
    kept: list[tuple[str, str]] = []
    named, identified, agent = "", False, False
    kinds = _KINDS[behind_pd_proxy]
    for pair in headers.items():
        kind = kinds.get(pair[0])
        if kind is None:
            kind = _kind(pair[0], behind_pd_proxy)
        if kind == PASS:
            kept.append(pair)
        elif kind == IDENTITY:
            kept.append(pair)
            identified = True
        elif kind == AGENT:
            kept.append(pair)
            agent = True
        elif kind == KEY:
            if key is None and keep_authorization:
                kept.append(pair)
        elif kind == NAMED:
            named += f",{pair[1]}"
    if named:
        kept = _without_named(kept, named)
    if key is not None:
        kept.append(("Authorization", f"Bearer {key}"))
    if not identified:
        kept.append(("x-request-id", request_id))
    if not agent:
        kept.append(("User-Agent", NAME))  # or aiohttp would name itself
    kept.append(("Accept-Encoding", "identity"))
    return kept


def _without_named(headers: list[tuple[str, str]], named: str) -> list[tuple[str, str]]:
    """Without what the Connection header names: it was meant for the first server, which is this one."""
    names = {name.strip().lower() for name in named.split(",")} - {"", "keep-alive", "close"}
    return [pair for pair in headers if pair[0].lower() not in names] if names else headers


def answer_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers of an engine's answer for the client."""
    kept: CIMultiDict[str] = CIMultiDict()
    named = ""
    for name, value in headers.items():
        back = _BACK.get(name)
        if back is None:
            low = name.lower()
            back = low not in HOP_BY_HOP and low not in NOT_BACK
            if len(_BACK) < MOST_NAMES:
                _BACK[name] = back
        if back:
            kept.add(name, value)
        elif name.lower() == "connection":
            named += f",{value}"
    for name in {part.strip() for part in named.split(",")} if named else ():
        kept.popall(name, None)
    return kept


def pinned_body(body: bytes, pin: Pin, kind: str, *, behind_pd_proxy: bool) -> bytes:
    r"""The body as it came, unless a field in it names a rank or has to.

    Only a body that could hold such a field is looked into: one with the end of its name in it, or with an escape that
    could hide it.

    Raises
    ------
    InputError
        The body is no JSON object.
    """
    suspect = b"_rank" in body or b"\\u" in body
    if not pin.body and not suspect and not (kind == "dynamo" and b"nvext" in body):
        return body
    try:
        top = _top.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is no JSON object ({str(error)[:80]})", fix="send one") from error
    changed = bool(pin.body) or not PIN_FIELDS.isdisjoint(top)
    if kind == "dynamo" and "nvext" in top:
        inner = _without(bytes(top["nvext"]), NVEXT if behind_pd_proxy else NVEXT | NVEXT_PREFILL)
        if inner is not None:
            top["nvext"] = msgspec.Raw(inner)
            body, changed = _encode(top), True
    return set_fields(body, pin.body) if changed else body


def _without(data: bytes, names: Iterable[str]) -> bytes | None:
    """A JSON object without some fields; None: it has none of them."""
    try:
        inner = _top.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # no object: the engine refuses it
    found = [name for name in names if inner.pop(name, None) is not None]
    return _encode(inner) if found else None
