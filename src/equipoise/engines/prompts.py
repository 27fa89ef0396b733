"""The text of a prompt, for whoever counts it by a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from equipoise.engines.facts import prompt_fields

__all__ = ["prompt_text"]

NO_TEXT = frozenset({"type", "role", "id", "url", "data", "image_url", "input_audio", "file"})
"""Keys of messages and parts whose values are no text of the prompt: kinds, names, inlined media."""

_value = msgspec.json.Decoder().decode


def prompt_text(path: str, body: bytes) -> str | None:
    """All text of a request's prompt, its pieces one after the other.

    Parameters
    ----------
    path : str
        The route: which fields hold the prompt depends on it.
    body : bytes

    Returns
    -------
    str or None
        None where there is no text, or the body cannot be read.

    Examples
    --------
    >>> prompt_text("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "how much?"}]}')
    'how much?'
    """
    try:
        read = _value(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    fields = prompt_fields(path.partition("?")[0].rstrip("/"))
    try:
        return "\n".join(piece for name in fields for piece in _pieces(read.get(name))) or None
    except RecursionError:
        return None


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _pieces(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key not in NO_TEXT:
                yield from _pieces(one)
