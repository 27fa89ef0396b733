"""The bytes of an answer: events of a stream, or one document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from equipoise.testing.mock_engine.requests import Asked

__all__ = ["Answer"]

COUNT = "@count@"
"""Stands for the number of the token while the template of the events is written."""


class Answer:
    """How one request is answered.

    Parameters
    ----------
    asked : Asked
    number : int
        Of the request, for its id.
    model : str
    extra : mapping
        Fields of every event that only this engine has.
    """

    def __init__(self, asked: Asked, number: int, model: str, extra: Mapping[str, Any]) -> None:
        self._asked = asked
        self._number, self._model, self._extra = number, model, extra
        kind = "chatcmpl" if asked.chat else "cmpl"
        self._base: dict[str, Any] = {"id": f"{kind}-{number:032x}", "created": 1_796_014_641, "model": model}
        self._template = self._events_template()
        self.tokens_in_template = self._template.count(b"%d")

    def token(self, made: int) -> bytes:
        """The event of the ``made``-th token."""
        data = self._template % ((made,) * self.tokens_in_template)
        return b"data: " + data + b"\n\n"

    def opening(self) -> bytes:
        """What comes before the first token: chat has an event with the role."""
        if not self._asked.chat:
            return b""
        return self._event(self._chat({"role": "assistant", "content": ""}, None))

    def closing(self, made: int) -> bytes:
        """The finish reason, usage if it was asked for, the end."""
        asked = self._asked
        if asked.own:
            return b"data: [DONE]\n\n"
        last = self._chat({}, "length") if asked.chat else self._text("", "length")
        out = self._event(last)
        if asked.include_usage:
            out += self._event({**self._base, "choices": [], "usage": self._usage(made)})
        return out + b"data: [DONE]\n\n"

    def document(self, made: int) -> Mapping[str, Any]:
        """The whole answer of a request that is no stream."""
        asked = self._asked
        text = "".join(f" {i}" for i in range(1, made + 1))
        if asked.own:
            return {
                "text": text,
                "output_ids": list(range(1, made + 1)),
                "meta_info": self._meta(made, "length"),
            }
        usage = {"usage": self._usage(made)}
        if not asked.chat:
            return {**self._text(text, "length"), **usage}
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        return {**self._base, "object": "chat.completion", "choices": [choice], **usage, **self._extra}

    def _events_template(self) -> bytes:
        asked = self._asked
        if asked.own:
            document: dict[str, Any] = {
                "text": f" {COUNT}",
                "output_ids": [COUNT],
                "meta_info": self._meta(COUNT, None),
            }
        else:
            document = (
                self._chat({"content": f" {COUNT}"}, None) if asked.chat else self._text(f" {COUNT}", None)
            )
            if asked.continuous_usage:
                document["usage"] = self._usage(COUNT)
        text = json.dumps(document, separators=(",", ":")).replace("%", "%%")
        return text.replace(f'"{COUNT}"', "%d").replace(COUNT, "%d").encode()

    def _event(self, document: Mapping[str, Any]) -> bytes:
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"

    def _chat(self, delta: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._base, "object": "chat.completion.chunk", "choices": [choice], **self._extra}

    def _text(self, text: str, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        return {**self._base, "object": "text_completion", "choices": [choice], **self._extra}

    def _usage(self, made: Any) -> dict[str, Any]:
        prompt = self._asked.prompt_tokens
        total = made if isinstance(made, str) else prompt + made
        return {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": made}

    def _meta(self, made: Any, finish: str | None) -> dict[str, Any]:
        reason = {"type": finish, "length": made} if finish else None
        return {
            "id": f"{self._number:032x}",
            "finish_reason": reason,
            "prompt_tokens": self._asked.prompt_tokens,
            "completion_tokens": made,
            "cached_tokens": 0,
        }
