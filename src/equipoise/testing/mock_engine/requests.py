"""A request as the mock engine understands it, and how long its answer gets."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from equipoise.errors import InputError

__all__ = ["Asked", "asked"]

DEFAULT_OUTPUT = 16
LENGTH_HEADER = "x-mock-prompt-tokens"
"""Says how long the prompt is, so that a long context need not be sent."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What matters of a body."""

    body: Mapping[str, Any]
    chat: bool
    own: bool
    """``/generate``, not an OpenAI route."""
    stream: bool
    prompt_tokens: int
    output_tokens: int
    include_usage: bool
    continuous_usage: bool


def asked(path: str, data: bytes, headers: Mapping[str, str], mean_output_tokens: float) -> Asked:
    """Read a body.

    Parameters
    ----------
    path : str
    data : bytes
    headers : mapping
        Case-insensitive.
    mean_output_tokens : float
        Where above 0, a request without ``ignore_eos`` ends by itself after about so many tokens: a number drawn from
        its own body, so the same request gets the same answer.

    Raises
    ------
    InputError
        It is no JSON object, or asks for something the mock does not do.
    """
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is no JSON ({str(error)[:60]})", fix="send a JSON object") from error
    if not isinstance(body, dict):
        raise InputError("the body is no JSON object", fix="send one")
    own, chat = path == "/generate", path == "/v1/chat/completions"
    sampling = body.get("sampling_params") if own else body
    if not isinstance(sampling, dict):
        sampling = {}
    if sampling.get("n") not in (None, 1):
        raise InputError("n is not 1", where="mock engine", fix="it makes one choice a request")
    budget = sampling.get("max_new_tokens" if own else "max_tokens")
    if budget is None:
        budget = sampling.get("max_completion_tokens")
    if budget is None:
        budget = DEFAULT_OUTPUT
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise InputError(f"max_tokens = {budget!r}", fix="it must be at least 1")
    if mean_output_tokens > 0 and sampling.get("ignore_eos") is not True:
        budget = min(budget, 1 + zlib.crc32(data) % max(round(2 * mean_output_tokens - 1), 1))
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    return Asked(
        body=body,
        chat=chat,
        own=own,
        stream=body.get("stream") is True,
        prompt_tokens=_declared(headers) or _prompt_tokens(body, own, chat),
        output_tokens=budget,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
    )


def _declared(headers: Mapping[str, str]) -> int:
    text = headers.get(LENGTH_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _prompt_tokens(body: Mapping[str, Any], own: bool, chat: bool) -> int:
    """Words of text, or ids; at least one token."""
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise InputError("there are no messages", fix="send a list of them")
        texts = [m.get("content") for m in messages if isinstance(m, dict)]
        parts = [
            p for t in texts for p in (t if isinstance(t, list) else [{"text": t}]) if isinstance(p, dict)
        ]
        return max(sum(len(p["text"].split()) for p in parts if isinstance(p.get("text"), str)), 1)
    prompt = (body.get("text") or body.get("input_ids")) if own else body.get("prompt")
    if isinstance(prompt, str):
        return max(len(prompt.split()), 1)
    if isinstance(prompt, list) and prompt and all(isinstance(i, int) for i in prompt):
        return len(prompt)
    raise InputError(
        "there is no prompt, or several", where="mock engine", fix="send one text or one list of ids"
    )
