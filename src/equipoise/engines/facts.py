"""What a router has to know of a request: how long its prompt is, what it may generate, whose session it is.

The body is decoded once, only its few fields that matter; the rest is skipped, and the bytes that go to the engine
stay those that came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from equipoise.errors import InputError

__all__ = ["GENERATING", "SESSION_HEADERS", "RequestFacts", "request_facts"]

GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/generate",
    "/inference/v1/generate",
)
"""Routes that occupy a decode rank."""

SESSION_HEADERS = ("x-session-id", "x-smg-routing-key", "x-dynamo-session-id")
"""Name a conversation; vLLM and vllm-router, SMG and SGLang, Dynamo. The first that is there counts."""

MAX_BUDGET = 1 << 31
MAX_SESSION = 256
"""Characters of a session id that count; longer ones are cut, so that a table of sessions stays small."""


class RequestFacts(msgspec.Struct, frozen=True):
    """What the body and the headers say.

    Parameters
    ----------
    model : str
        Empty where none is named.
    stream : bool
        Whether the answer is to be server-sent events.
    prompt_tokens : int
        Exact, where the prompt was given as token ids; else -1.
    prompt_bytes : int
        UTF-8 bytes of the prompt's text (messages: with their JSON around); 0 where it was ids.
    budget_tokens : int
        Most output tokens of one sequence; -1 where none was declared.
    sequences : int
        Sequences it decodes at once: prompts in the batch times choices of each.
    choices : int
        Of each prompt: every one holds the prompt's tokens.
    ignore_eos : bool
        It will use its whole budget.
    session : str or None
        Name of the conversation.
    body_bytes : int
        Length of the body.
    usage : bool
        Whether a streamed answer will end with exact counts (``stream_options.include_usage``).
    """

    model: str
    stream: bool
    prompt_tokens: int
    prompt_bytes: int
    budget_tokens: int
    sequences: int
    choices: int
    ignore_eos: bool
    session: str | None
    body_bytes: int
    usage: bool


_NONE = msgspec.Raw()
"""A field that is not there: most of them in most bodies, so they are told by identity."""


class _Body(msgspec.Struct):
    """Every field as it came: a wrong type is the engine's to refuse."""

    model: msgspec.Raw = _NONE
    stream: msgspec.Raw = _NONE
    stream_options: msgspec.Raw = _NONE
    n: msgspec.Raw = _NONE
    max_tokens: msgspec.Raw = _NONE
    max_completion_tokens: msgspec.Raw = _NONE
    max_output_tokens: msgspec.Raw = _NONE
    ignore_eos: msgspec.Raw = _NONE
    sampling_params: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    text: msgspec.Raw = _NONE
    input_ids: msgspec.Raw = _NONE
    token_ids: msgspec.Raw = _NONE
    prompt_cache_key: msgspec.Raw = _NONE
    session_id: msgspec.Raw = _NONE
    session_params: msgspec.Raw = _NONE


_decode = msgspec.json.Decoder(_Body).decode
_value = msgspec.json.Decoder().decode


def request_facts(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> RequestFacts:
    """Read a request.

    Parameters
    ----------
    path : str
        Its route; the fields that count differ (``/generate`` keeps the prompt in ``text`` or ``input_ids``).
    body : bytes
        The whole body.
    headers : mapping, optional
        For the session; names are looked up in lower case, so a case-insensitive mapping or one of lower-case names.

    Raises
    ------
    InputError
        The body is no JSON object.

    Examples
    --------
    >>> facts = request_facts("/v1/completions", b'{"model": "m", "prompt": [5, 6, 7], "max_tokens": 20}')
    >>> facts.prompt_tokens, facts.budget_tokens
    (3, 20)
    """
    try:
        read = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"the body is no JSON object ({str(error)[:80]})", where=path[:80], fix="send one"
        ) from error
    route = path.partition("?")[0].rstrip("/")
    sampling = _object(read.sampling_params)
    own = route.endswith("/generate")  # /generate and /inference/v1/generate
    parts = [getattr(read, name) for name in prompt_fields(route)]
    tokens, text_bytes, prompts = _prompt(parts, batched=own or route == "/v1/completions")
    budgets = [
        _whole(read.max_tokens),
        _whole(read.max_completion_tokens),
        _whole(read.max_output_tokens),
        _as_whole(sampling.get("max_new_tokens")),
        _as_whole(sampling.get("max_tokens")),
    ]
    declared = [b for b in budgets if b >= 0]
    choices = max(_whole(read.n), _as_whole(sampling.get("n")), 1)
    options = _object(read.stream_options)
    return RequestFacts(
        model=_string(read.model),
        stream=bytes(read.stream) == b"true",
        prompt_tokens=tokens,
        prompt_bytes=text_bytes,
        budget_tokens=min(declared) if declared else -1,
        sequences=min(prompts * choices, MAX_BUDGET),
        choices=min(choices, MAX_BUDGET),
        ignore_eos=bytes(read.ignore_eos) == b"true" or sampling.get("ignore_eos") is True,
        session=_session(read, headers or {}),
        body_bytes=len(body),
        usage=options.get("include_usage") is True or own,
    )


def prompt_fields(route: str) -> tuple[str, ...]:
    """Fields of a body that hold the prompt, by the route it is sent to."""
    if route.endswith("/generate"):
        return ("text", "input_ids", "token_ids", "prompt")
    if route == "/v1/responses":
        return ("input", "instructions", "tools")
    if route in ("/v1/chat/completions", "/v1/messages"):
        return ("messages", "system", "tools")
    return ("prompt",)


def _prompt(parts: Sequence[msgspec.Raw], *, batched: bool) -> tuple[int, int, int]:
    """Tokens (-1: unknown), bytes of text, and the number of prompts."""
    tokens, text_bytes, prompts = -1, 0, 1
    for raw in parts:
        if raw is _NONE:
            continue
        data = bytes(raw)
        if not data or data == b"null":
            continue
        ids, many = _ids(data) if data.startswith(b"[") else (-1, 1)
        if ids >= 0:
            tokens = max(tokens, 0) + ids
            prompts = max(prompts, many)
            continue
        text_bytes += _text_bytes(data)
        if batched and data.startswith(b'["'):
            prompts = max(prompts, len(_list(data)))
    return (-1 if text_bytes else tokens), text_bytes, prompts


def _ids(data: bytes) -> tuple[int, int]:
    """Token ids in a list, or in a list of lists, and the number of lists; (-1, 1) where it is no such thing."""
    if data.translate(None, b"0123456789,[] \t\r\n"):
        return -1, 1
    inner = data.strip()[1:-1].strip()
    if not inner:
        return 0, 1
    if inner.startswith(b"["):
        lists = inner.count(b"[")
        empty = sum(1 for one in inner.split(b"[") if one.strip(b" \t\r\n").startswith(b"]"))
        return max(data.count(b",") - (lists - 1) + lists - empty, 0), lists
    return data.count(b",") + 1, 1


def _text_bytes(data: bytes) -> int:
    r"""UTF-8 bytes of text in JSON: ``\uXXXX`` is one character of mostly three; inlined media is no text."""
    if b";base64," in data:
        return _without_media(data)
    size = len(data) - 3 * data.count(b"\\u") - data.count(b"\\n") - data.count(b'\\"')
    return max(size - 2, 0)


def _without_media(data: bytes) -> int:
    total, at = 0, 0
    while (found := data.find(b";base64,", at)) >= 0:
        total += found - at
        end = data.find(b'"', found)
        at = len(data) if end < 0 else end
    return total + len(data) - at


def _session(read: _Body, headers: Mapping[str, str]) -> str | None:
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value:
            return value[:MAX_SESSION]
    for raw in (read.prompt_cache_key, read.session_id):
        text = _string(raw)
        if text:
            return text[:MAX_SESSION]
    inner = _object(read.session_params).get("id")
    return inner[:MAX_SESSION] if isinstance(inner, str) and inner else None


def _string(raw: msgspec.Raw) -> str:
    if raw is _NONE:
        return ""
    data = bytes(raw)
    if not data.startswith(b'"'):
        return ""
    value = _read(data)
    return value if isinstance(value, str) else ""


def _object(raw: msgspec.Raw) -> Mapping[str, Any]:
    if raw is _NONE:
        return {}
    data = bytes(raw)
    if not data.startswith(b"{"):
        return {}
    value = _read(data)
    return value if isinstance(value, dict) else {}


def _list(data: bytes) -> list[Any]:
    value = _read(data)
    return value if isinstance(value, list) else []


def _read(data: bytes) -> Any:
    """A value; None where it cannot be read: what a body holds as raw text is only skipped over, not checked."""
    try:
        return _value(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _whole(raw: msgspec.Raw) -> int:
    if raw is _NONE:
        return -1
    data = bytes(raw)
    return min(int(data), MAX_BUDGET) if data.isdigit() and len(data) <= 19 else -1


def _as_whole(value: Any) -> int:
    plain = isinstance(value, int) and not isinstance(value, bool)
    return min(value, MAX_BUDGET) if plain and value >= 0 else -1
