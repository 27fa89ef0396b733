"""Tokens in a response as its bytes pass by.

An event of a stream is mostly one token; what the engine counts itself wins: ``completion_tokens`` in every event
(``continuous_usage_stats``, SGLang's ``/generate``), token ids, and the usage at the end. Bytes are searched, not
parsed: inside a JSON string a quote is escaped, so a key with its two plain quotes and a colon is a key. Only an event
that could be empty (a role, a finish reason, an error) is decoded.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["TokenCounter"]

STRING = re.compile(rb'(?:"content"|"text"):"(?:[^"\\\n]++|\\.)*+"')
COMPLETION = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d{1,12})(?!\d)')
PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens)"\s*:\s*(\d{1,12})(?!\d)')
IDS = re.compile(rb'"(?:token_ids|output_ids)"\s*:\s*\[([^\]]*)\]')
INDEX = re.compile(rb'"index"\s*:\s*(\d{1,6})(?!\d)')
NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
MAX_HELD = 1 << 20
"""Bytes of an unfinished event that are kept; of a longer one only its end."""
WINDOW = 128
"""Bytes kept between chunks of a response that is no stream: longer than any key and number looked for."""
MAX_TOKENS = 1 << 31
MAX_INDEX = 4096
"""A count or an index beyond these is no count and no index."""

_value = msgspec.json.Decoder().decode


class TokenCounter:
    """Counts one response.

    Parameters
    ----------
    sse : bool
        Whether it is a stream of server-sent events; otherwise one JSON document.
    tokens_per_event : float
        Tokens that an event without counts stands for: above 1 where the engine speculates or bundles
        (``--stream-interval``). `events` and `output_tokens` of finished streams teach it.

    Attributes
    ----------
    tokens : int
        Told so far: the sum of what `feed` and `end` returned.
    events : int
        Events that carried tokens.
    prompt_tokens : int
        As the engine says; -1: not yet.
    exact : bool
        Whether `output_tokens` is the engine's own final count.
    done : bool
        Whether the stream said that it ended.
    failed : bool
        Whether the stream carried an error.
    error_status : int
        The HTTP status in that error, where it has one: vLLM refuses streamed requests so; else 0.
    """

    __slots__ = (
        "_by_index",
        "_final",
        "_fraction",
        "_head",
        "_held",
        "_lessons",
        "_shortest",
        "_sse",
        "_tail",
        "_tokens_per_event",
        "done",
        "error_status",
        "events",
        "failed",
        "prompt_tokens",
        "tokens",
    )

    def __init__(self, *, sse: bool = True, tokens_per_event: float = 1.0) -> None:
        self._sse = sse
        self._tokens_per_event = tokens_per_event
        self._held = bytearray()
        self._by_index: dict[int, int] = {}
        self._final = -1
        self._fraction = 0.0
        # What stands before and after the text of this stream's ordinary events: the same bytes in all of them.
        self._head = self._tail = b"\0"
        self._shortest = 1 << 62
        self._lessons = 4
        self.tokens = 0
        self.events = 0
        self.prompt_tokens = -1
        self.done = False
        self.failed = False
        self.error_status = 0

    @property
    def exact(self) -> bool:
        """Whether `output_tokens` is the engine's own final count."""
        return self._final >= 0 or (self.done and bool(self._by_index))

    @property
    def output_tokens(self) -> int:
        """Output tokens of the response: the engine's count if it gave one, else `tokens`."""
        return self._final if self._final >= 0 else self.tokens

    def feed(self, chunk: bytes) -> int:
        """Take the next bytes, cut anywhere; how many tokens are new in them (never negative)."""
        held = self._held
        if not self._sse:
            held += chunk
            self._search(bytes(held))
            del held[:-WINDOW]
            return 0
        if (
            not held and 0 <= chunk.find(b"\n\n") == len(chunk) - 2
        ):  # one whole event: nearly every chunk there is
            if len(chunk) > self._shortest and chunk.startswith(self._head) and chunk.endswith(self._tail):
                return self._plain(1)
            return self._event(chunk)
        if b"\r" in chunk:  # a raw carriage return is only ever part of a line's end
            chunk = chunk.replace(b"\r", b"")
        seen = max(len(held) - 1, 0)
        held += chunk
        end = held.rfind(b"\n\n", seen)
        if end < 0:
            if len(held) > MAX_HELD:
                del held[:-WINDOW]
            return 0
        events = bytes(held[:end]).split(b"\n\n")
        del held[: end + 2]
        new = 0
        for event in events:
            # The tail was learnt with its empty line, which the cut took off.
            if (
                len(event) + 2 > self._shortest
                and event.startswith(self._head)
                and event.endswith(self._tail[:-2])
            ):
                new += self._plain(1)
            else:
                new += self._event(event)
        return new

    def end(self) -> int:
        """No more bytes: take an event that lacks its empty line; new tokens of it, or of a whole document."""
        held, self._held = bytes(self._held), bytearray()
        if self._sse:
            return self._event(held) if held else 0
        new = max(self._final - self.tokens, 0)
        self.tokens += new
        return new

    def _event(self, event: bytes) -> int:
        if b'_tokens"' in event and (new := self._counted(event)) >= 0:
            return new
        if b'_ids":' in event and (new := self._ids(event)) >= 0:
            return new
        plain = b'"choices":[{' in event and b'""' not in event and b"{}" not in event and b"[]" not in event
        if not plain:
            carried = self._carried(event)
            return self._plain(carried) if carried else 0
        if self._lessons:
            self._learn(event)
        return self._plain(1)

    def _plain(self, carried: int) -> int:
        """Events that stand for a token each."""
        self.events += 1
        if self._tokens_per_event == 1.0:
            self.tokens += carried
            return carried
        self._fraction += carried * self._tokens_per_event
        whole = int(self._fraction)
        self._fraction -= whole
        self.tokens += whole
        return whole

    def _learn(self, event: bytes) -> None:
        """Keep what surrounds the text of an ordinary event, to know the next one by it."""
        self._lessons -= 1
        found = STRING.search(event)
        if found is None:
            return
        opening = found.group().index(b'":"') + 3
        self._head = event[: found.start() + opening]
        tail = event[found.end() - 1 :]
        self._tail = tail if tail.endswith(b"\n\n") else tail + b"\n\n"
        self._shortest = len(self._head) + len(self._tail)

    def _counted(self, event: bytes) -> int:
        """An event with the engine's own count, of all or of one choice; -1: it has none."""
        if self.prompt_tokens < 0 and (prompts := PROMPT.findall(event)):
            self.prompt_tokens = min(int(prompts[-1]), MAX_TOKENS)
        at = event.rfind(b'"completion_tokens"')
        whole = at < 0
        if (
            whole
        ):  # Responses and Messages tell of the whole; the opening event of Messages of what is there so far
            at = event.rfind(b'"output_tokens"')
            if at < 0 or b'"message_start"' in event:
                return -1 if at < 0 else 0
        found = COMPLETION.match(event, at)
        if found is None or (count := int(found[1])) > MAX_TOKENS:
            return -1
        if whole or b'"choices":[]' in event or NO_CHOICES.search(event) is not None:
            total = self._final = count
            self.done = self.done or b'"response.' in event  # the other streams say so by themselves
        else:
            self.events += 1
            index = None if b'"index":0' in event else INDEX.search(event)
            number = int(index[1]) if index else 0
            if number >= MAX_INDEX:
                return 0
            self._by_index[number] = count
            total = count if len(self._by_index) == 1 else sum(self._by_index.values())
        new = max(total - self.tokens, 0)
        self.tokens += new
        return new

    def _ids(self, event: bytes) -> int:
        """An event with the ids of its tokens; -1: it has none."""
        new, seen = 0, False
        for ids in IDS.findall(event):
            seen = True
            if ids.strip():
                new += ids.count(b",") + 1
        if not seen:
            return -1
        if new:
            self.events += 1
        self.tokens += new
        return new

    def _carried(self, event: bytes) -> int:
        """Choices of an unusual event that carry a token."""
        start = event.find(b"data:")
        if start < 0 or (start > 0 and event[start - 1 : start] != b"\n"):
            return 0  # a comment that keeps the connection alive
        data = event[start + 5 :].strip()
        if data == b"[DONE]":
            self.done = True
            return 0
        try:
            value = _value(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return 0
        if not isinstance(value, dict):
            return 0
        if "error" in value and value["error"] is not None:
            self.failed = True
            code = value["error"].get("code") if isinstance(value["error"], dict) else None
            self.error_status = code if isinstance(code, int) and 400 <= code < 600 else 0
            return 0
        kind = value.get("type")
        if isinstance(kind, str):  # Responses and Messages: typed events
            self.done = self.done or kind in ("response.completed", "response.incomplete", "message_stop")
            self.failed = self.failed or kind in ("error", "response.failed")
            return 1 if kind.endswith(("_delta", ".delta")) and kind != "message_delta" else 0
        choices = value.get("choices")
        if isinstance(choices, list):
            return sum(1 for choice in choices if _has_token(choice))
        return 1 if value.get("text") else 0

    def _search(self, window: bytes) -> None:
        """Counts in a document that is not a stream; the last ones win."""
        for found in COMPLETION.finditer(window):
            if found.end() < len(window):  # a number at the very end may go on
                self._final = min(int(found[1]), MAX_TOKENS)
        for found in PROMPT.finditer(window):
            if found.end() < len(window):
                self.prompt_tokens = min(int(found[1]), MAX_TOKENS)


def _has_token(choice: Any) -> bool:
    """Whether a choice of an event stands for a token.

    An empty text without a finish reason is one that is half a character yet; with one, or beside a role, it is none.
    """
    if not isinstance(choice, dict):
        return False
    finished = choice.get("finish_reason") is not None
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return bool(text) or (text == "" and not finished)
    if any(delta.get(k) for k in ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")):
        return True
    return "role" not in delta and delta.get("content") == "" and not finished
