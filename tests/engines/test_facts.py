"""What is read of a request, and what is changed in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.engines import is_pin, request_facts, set_fields, stripped
from equipoise.engines.headers import PIN_FIELDS, PREFILL_HEADERS, RANK_HEADERS
from equipoise.errors import InputError


def facts(path: str, document: Any, headers: dict[str, str] | None = None) -> Any:
    return request_facts(path, json.dumps(document).encode(), headers)


@pytest.mark.parametrize(
    ("path", "document", "expected"),
    [
        ("/v1/completions", {"model": "m", "prompt": "abcd", "max_tokens": 7}, (-1, 4, 7, 1)),
        ("/v1/completions", {"prompt": [1, 2, 3]}, (3, 0, -1, 1)),
        ("/v1/completions", {"prompt": [[1, 2, 3], [4], []], "n": 2}, (4, 0, -1, 6)),
        ("/v1/completions", {"prompt": ["ab", "cd", "e"]}, (-1, None, -1, 3)),
        ("/v1/completions", {"prompt": []}, (0, 0, -1, 1)),
        ("/v1/completions?stream=1", {"prompt": [5]}, (1, 0, -1, 1)),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "abc"}], "max_completion_tokens": 9},
            (-1, None, 9, 1),
        ),
        ("/v1/responses", {"input": "abcd", "max_output_tokens": 5}, (-1, 4, 5, 1)),
        ("/v1/messages", {"messages": [], "system": "abc", "max_tokens": 3}, (-1, None, 3, 1)),
        ("/generate", {"text": "abcd", "sampling_params": {"max_new_tokens": 6, "n": 3}}, (-1, 4, 6, 3)),
        ("/generate", {"input_ids": [1, 2], "sampling_params": {"ignore_eos": True}}, (2, 0, -1, 1)),
        (
            "/inference/v1/generate",
            {"token_ids": [1, 2, 3, 4], "sampling_params": {"max_tokens": 8}},
            (4, 0, 8, 1),
        ),
        ("/v1/completions", {"prompt": None, "max_tokens": None}, (-1, 0, -1, 1)),
        (
            "/v1/completions",
            {"prompt": {"odd": 1}, "max_tokens": "7", "n": -1, "sampling_params": 3},
            (-1, None, -1, 1),
        ),
        ("/v1/completions", {"prompt": [1], "max_tokens": 10**30}, (1, 0, -1, 1)),
        ("/v1/completions", {"prompt": [1], "max_tokens": 10**12}, (1, 0, 1 << 31, 1)),
    ],
)
def test_lengths_and_budgets(path: str, document: Any, expected: tuple[Any, ...]) -> None:
    read = facts(path, document)
    tokens, text_bytes, budget, sequences = expected
    assert (read.prompt_tokens, read.budget_tokens, read.sequences) == (tokens, budget, sequences)
    assert text_bytes is None or read.prompt_bytes == text_bytes


@given(st.text(max_size=40), st.booleans())
def test_bytes_of_text_are_close_whatever_its_json(text: str, ascii_only: bool) -> None:
    """Escapes change the length of the body, not what is estimated (control characters and astral ones aside)."""
    body = json.dumps({"prompt": text}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    read = request_facts("/v1/completions", body)
    assert abs(read.prompt_bytes - len(text.encode())) <= 2 * len(text)
    plain = text.isascii() and text.isprintable() and "\\" not in text
    assert not plain or read.prompt_bytes == len(text)


def test_media_is_no_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    read = facts(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [image, {"type": "text", "text": "what"}]}]},
    )
    assert read.prompt_bytes < 300
    assert read.body_bytes > 100_000


@pytest.mark.parametrize(
    ("document", "headers", "session"),
    [
        ({}, {"x-session-id": "a"}, "a"),
        ({}, {"x-smg-routing-key": "b", "x-session-id": "a"}, "a"),
        ({"prompt_cache_key": "c"}, {}, "c"),
        ({"session_id": "d"}, {"x-dynamo-session-id": "e"}, "e"),
        ({"session_params": {"id": "f"}}, {}, "f"),
        ({"session_params": {"id": 7}, "session_id": 5}, {}, None),
        ({"session_id": "x" * 1000}, {}, "x" * 256),
        ({}, {}, None),
    ],
)
def test_sessions(document: Any, headers: dict[str, str], session: str | None) -> None:
    assert facts("/v1/completions", document, headers).session == session


def test_stream_and_usage() -> None:
    read = facts(
        "/v1/completions", {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    )
    assert (read.stream, read.usage, read.ignore_eos) == (True, True, True)
    read = facts("/v1/completions", {"stream": "true", "stream_options": [], "ignore_eos": 1})
    assert (read.stream, read.usage, read.ignore_eos) == (False, False, False)


@given(st.binary(max_size=60))
def test_any_body(body: bytes) -> None:
    for path in ("/v1/completions", "/generate", "/v1/chat/completions"):
        try:
            request_facts(path, body)
        except InputError:
            continue


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        "prompt",
        "messages",
        "input",
        "text",
        "input_ids",
        "n",
        "max_tokens",
        "sampling_params",
        "stream",
        "session_params",
        "model",
    ]
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(KEYS, JSON, max_size=6),
    st.sampled_from(["/v1/completions", "/generate", "/v1/responses"]),
)
def test_any_document(document: Any, path: str) -> None:
    read = facts(path, document)
    assert read.prompt_tokens >= -1
    assert read.prompt_bytes >= 0
    assert read.sequences >= 1
    assert read.budget_tokens >= -1


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=4) | st.sampled_from(sorted(PIN_FIELDS)), JSON, max_size=5))
def test_set_fields_changes_only_them(document: Any) -> None:
    after = json.loads(set_fields(json.dumps(document).encode(), {"routed_dp_rank": 3}))
    kept = {k: v for k, v in document.items() if k not in PIN_FIELDS}
    assert after == {**kept, "routed_dp_rank": 3}


def test_set_fields_keeps_bytes_and_sees_through_escapes() -> None:
    body = (
        b'{"a" : 1.50, "b":[1,  2], "\\u0072outed_dp_rank": 7, "routed_dp_rank": 8, "data_parallel_rank":9}'
    )
    assert set_fields(body, {"routed_dp_rank": 3}) == b'{"a":1.50,"b":[1,  2],"routed_dp_rank":3}'
    for bad in (b"", b"[]", b"{", b'{"a":1}x'):
        with pytest.raises(InputError, match="no JSON object"):
            set_fields(bad, {})


@pytest.mark.parametrize("name", [*sorted(RANK_HEADERS | PREFILL_HEADERS), "x-override-anything-new"])
def test_pin_headers_are_stripped_in_any_spelling(name: str) -> None:
    for spelling in (name, name.upper(), name.title(), name.replace("-", "_")):
        assert stripped([(spelling, "1"), ("Accept", "x")]) == [("Accept", "x")]
    behind = is_pin(name, behind_pd_proxy=True)
    assert behind == (name not in PREFILL_HEADERS)


@pytest.mark.parametrize(
    "name", ["X-Session-ID", "x-dynamo-session-id", "x-smg-routing-key", "Authorization", "x-request-id"]
)
def test_other_headers_pass(name: str) -> None:
    assert not is_pin(name)
