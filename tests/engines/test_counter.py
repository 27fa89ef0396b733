"""Counting tokens in responses: recorded streams, whole and cut anywhere, against a naive twin."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import recorded

from equipoise.engines import TokenCounter


def event(document: Any, end: str = "\n\n", dense: bool = True) -> bytes:
    text = json.dumps(document, separators=(",", ":") if dense else None)
    return f"data: {text}{end}".encode()


def chat(content: str | None, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    delta = {} if content is None else {"content": content}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def text(content: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": content, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice], **more}


USAGE = {"prompt_tokens": 11, "total_tokens": 20, "completion_tokens": 9}
DONE = b"data: [DONE]\n\n"
ROLE = chat(None)
ROLE["choices"][0]["delta"] = {"role": "assistant", "content": ""}

STREAMS: dict[str, tuple[list[bytes], int, int, int]] = {
    # events, tokens told, output tokens at the end, prompt tokens
    "vllm chat": (
        [event(ROLE), *(event(chat(f" w{i}")) for i in range(5)), event(chat("!", "stop")), DONE],
        6,
        6,
        -1,
    ),
    "vllm completions": (
        [*(event(text(f" w{i}")) for i in range(5)), event(text("", "stop")), DONE],
        5,
        5,
        -1,
    ),
    "half characters": (
        [event(text("")), event(text("é")), event(chat("")), event(chat("é")), DONE],
        4,
        4,
        -1,
    ),
    "usage at the end": (
        [event(ROLE), event(chat("a")), event(chat("bcd")), event({"choices": [], "usage": USAGE}), DONE],
        9,
        9,
        11,
    ),
    "usage below what was counted": (
        [*(event(chat("a")) for _ in range(12)), event({"choices": [], "usage": USAGE}), DONE],
        12,
        9,
        11,
    ),
    "continuous usage": (
        [event(chat("ab", usage={**USAGE, "completion_tokens": n})) for n in (2, 5, 9)] + [DONE],
        9,
        9,
        11,
    ),
    "continuous usage of two choices": (
        [
            event(chat("a", index=0, usage={**USAGE, "completion_tokens": 2})),
            event(chat("b", index=1, usage={**USAGE, "completion_tokens": 3})),
            event(chat("c", index=0, usage={**USAGE, "completion_tokens": 4})),
            event({"choices": [], "usage": {**USAGE, "completion_tokens": 7}}),
            DONE,
        ],
        7,
        7,
        11,
    ),
    "token ids": (
        [event(text("ab", token_ids=None)), event({"choices": [{"index": 0, "token_ids": [1, 2, 3]}]}), DONE],
        4,
        4,
        -1,
    ),
    "sglang generate": (
        [
            event({"text": "a", "output_ids": [7], "meta_info": {"prompt_tokens": 4, "completion_tokens": n}})
            for n in (1, 3, 6)
        ]
        + [DONE],
        6,
        6,
        4,
    ),
    "responses": (
        [
            b'event: response.created\ndata: {"type":"response.created","response":{"usage":null}}\n\n',
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":""}\n\n',
            b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":'
            b'{"input_tokens":5,"output_tokens":4,"total_tokens":9}}}\n\n',
        ],
        4,
        4,
        5,
    ),
    "messages": (
        [
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
            b'{"input_tokens":5,"output_tokens":0}}}\n\n',
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"text":"a"}}\n\n',
            b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":3}}\n\n',
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        ],
        3,
        3,
        5,
    ),
    "an error": ([event(chat("a")), event({"error": {"message": "x", "code": 500}}), DONE], 1, 1, -1),
    "comments": ([b": ping\n\n", event(chat("a")), b": ping\n\n", b"\n\n", DONE], 1, 1, -1),
    "text that looks like keys": (
        [
            event(chat('"completion_tokens":99')),
            event(chat('"usage":{"completion_tokens":5}')),
            event(chat("\n\ndata: x")),
            event(chat('""')),
            event(chat("{}")),
            event(chat('"token_ids":[1,2]')),
            DONE,
        ],
        6,
        6,
        -1,
    ),
    "reasoning and tools": (
        [
            event({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]}),
            event({"choices": [{"index": 0, "delta": {"content": "", "tool_calls": [{"index": 0}]}}]}),
            DONE,
        ],
        2,
        2,
        -1,
    ),
}


def count(chunks: list[bytes]) -> TokenCounter:
    counter = TokenCounter()
    told = sum(counter.feed(chunk) for chunk in chunks) + counter.end()
    assert told == counter.tokens
    return counter


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str) -> None:
    events, told, final, prompt = STREAMS[name]
    counter = count(events)
    assert (counter.tokens, counter.output_tokens, counter.prompt_tokens) == (told, final, prompt)
    assert counter.done
    assert counter.failed == (name == "an error")


@pytest.mark.parametrize("name", ["dynamo-completions.sse", "dynamo-chat.sse"])
def test_recorded_streams(name: str) -> None:
    counter = count([recorded(name)])
    assert (counter.tokens, counter.exact, counter.done) == (4, True, True)
    assert counter.prompt_tokens in (3, 6)
    assert counter.events == 4


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_cut_at_every_byte(name: str, end: bytes) -> None:
    events, told, final, prompt = STREAMS[name]
    stream = b"".join(events).replace(b"\n\n", end) if end != b"\n\n" else b"".join(events)
    for size in (1, 2, 3, 7, 64, len(stream)):
        counter = count([stream[i : i + size] for i in range(0, len(stream), size)])
        assert (counter.tokens, counter.output_tokens, counter.prompt_tokens) == (told, final, prompt), size


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_cuts_change_nothing(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(STREAMS)), min_size=1, max_size=3))
    stream = b"".join(b"".join(STREAMS[n][0]) for n in names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, cut = count([stream]), count(pieces)
    assert (whole.tokens, whole.output_tokens, whole.events) == (cut.tokens, cut.output_tokens, cut.events)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6), max_size=20), st.booleans(), st.booleans())
def test_any_text_is_one_token_an_event(words: list[str], is_chat: bool, dense: bool) -> None:
    """The twin: decode every event. Ways to write JSON and what stands in the text change nothing."""
    make = chat if is_chat else text
    stream = b"".join(event(make(word), dense=dense) for word in words)
    assert count([stream]).tokens == len(words)
    assert sum(TokenCounter().feed(event(make(word), dense=dense)) for word in words) == len(words)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([*STREAMS["responses"][0], DONE, b"data: {", b"\n\n"]),
        max_size=8,
    ),
    st.booleans(),
)
def test_any_bytes_count_something(chunks: list[bytes], sse: bool) -> None:
    counter = TokenCounter(sse=sse)
    assert all(counter.feed(chunk) >= 0 for chunk in chunks)
    assert counter.end() >= 0
    assert counter.tokens >= 0


def test_bundles_are_weighed() -> None:
    counter = TokenCounter(tokens_per_event=2.5)
    assert [counter.feed(event(chat("ab"))) for _ in range(4)] == [2, 3, 2, 3]
    assert counter.events == 4
    assert counter.feed(event({"choices": [], "usage": {**USAGE, "completion_tokens": 11}})) == 1
    assert counter.output_tokens == 11


@pytest.mark.parametrize("size", [1, 5, 40, 10_000])
def test_a_document_that_is_no_stream(size: int) -> None:
    body = json.dumps(
        {"choices": [{"text": '"completion_tokens":77,'}], "usage": USAGE, "more": None}
    ).encode()
    counter = TokenCounter(sse=False)
    assert not any(counter.feed(body[i : i + size]) for i in range(0, len(body), size))
    assert counter.end() == 9
    assert (counter.output_tokens, counter.prompt_tokens, counter.exact) == (9, 11, True)


def test_nothing_grows_without_end() -> None:
    counter = TokenCounter()
    for _ in range(300):
        counter.feed(b"data: " + b"x" * 10_000)
    assert len(counter._held) < 1 << 21
    assert counter.feed(b"\n\n" + event(chat("a"))) == 1
    for i in range(10_000):
        counter.feed(event(chat("a", index=i, usage={"completion_tokens": 1})))
    assert len(counter._by_index) <= 4096


def test_absurd_counts_are_ignored() -> None:
    counter = TokenCounter()
    counter.feed(event(chat("a", usage={"completion_tokens": 10**11})))
    counter.feed(event(chat("a", usage={"completion_tokens": 10**20})))
    assert counter.tokens == 2
