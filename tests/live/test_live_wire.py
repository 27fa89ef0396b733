"""Reading answers: however the bytes are cut, the same pieces; whatever the bytes are, one end and no crash."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.live.answer_reader import AnswerReader
from equipoise.live.wire import Connections

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


class Kept:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.data = b""
        self.ends: list[str] = []
        self.times: list[float] = []

    def head(self, status: int) -> None:
        assert not self.ends
        self.status = status

    def piece(self, data: bytes, at_s: float) -> None:
        assert not self.ends
        assert data
        self.data += data
        self.times.append(at_s)

    def over(self, how: str, at_s: float) -> None:
        self.ends.append(how)


def read(data: bytes, cuts: list[int] | None = None, *, closed: bool = False) -> tuple[Kept, AnswerReader]:
    sink = Kept()
    reader = AnswerReader(sink)
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts or []), len(data)]
    for i, (a, b) in enumerate(pairwise(edges)):
        if a < b:
            reader.feed(data[a:b], float(i))
    if closed:
        reader.closed(99.0)
    return sink, reader


def chunked(pieces: list[bytes]) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 10_000), max_size=12)
)
def test_chunks_however_they_are_cut(pieces: list[bytes], cuts: list[int]) -> None:
    sink, reader = read(chunked(pieces), cuts)
    assert (sink.status, sink.data, sink.ends) == (200, b"".join(pieces), ["complete"])
    assert reader.reusable


@given(st.binary(max_size=60), st.lists(st.integers(0, 10_000), max_size=8))
def test_a_length_however_it_is_cut(body: bytes, cuts: list[int]) -> None:
    sink, reader = read(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), cuts)
    assert (sink.data, sink.ends, reader.reusable) == (body, ["complete"], True)


def test_a_whole_chunk_is_one_piece_and_bears_the_time_it_came() -> None:
    sink = Kept()
    reader = AnswerReader(sink)
    reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 1.0)
    reader.feed(b"5\r\nabcde\r\n", 2.0)
    reader.feed(b"3\r\nxyz\r\n0\r\n\r\n", 3.0)
    assert (sink.data, sink.times) == (b"abcdexyz", [2.0, 3.0])


@pytest.mark.parametrize(
    ("data", "how"),
    [
        (HEAD + b"\r\nuntil the end", "complete"),
        (HEAD + b"Content-Length: 9\r\n\r\nshort", "reset"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", "reset"),
        (HEAD, "reset"),
        (b"", "reset"),
    ],
)
def test_a_connection_that_ends(data: bytes, how: str) -> None:
    sink, reader = read(data, closed=True)
    assert sink.ends == [how]
    assert not reader.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 2000 odd\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        HEAD + b"no colon\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 1_0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nthis is no chunk\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    ],
)
def test_no_http_is_unreadable(data: bytes) -> None:
    sink, reader = read(data)
    assert sink.ends == ["unreadable"]
    assert not reader.reusable


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=8), st.booleans())
def test_any_bytes_end_once(noise: bytes, cuts: list[int], after_head: bool) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" if after_head else b""
    sink, _ = read(head + noise, cuts, closed=True)
    assert len(sink.ends) == 1


def test_more_than_was_asked_for_ends_the_connection() -> None:
    _, reader = read(chunked([b"a"]) + b"HTTP/1.1 200 OK\r\n")
    assert not reader.reusable


def test_hints_before_the_answer_are_passed_over() -> None:
    sink, _ = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
    assert (sink.status, sink.ends) == (204, ["complete"])


def test_nobody_listens() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionError):
            await Connections().take("http://127.0.0.1:9")

    asyncio.run(main())
