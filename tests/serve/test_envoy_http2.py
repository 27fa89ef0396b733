"""The HTTP/2 that the picker speaks: against gRPC's own client, in any splitting, and under any bytes."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from envoy_rig import run
from hypothesis import given
from hypothesis import strategies as st

from equipoise.serve.envoy import http2
from equipoise.serve.envoy.http2 import PREFACE, Call, Connection


class Echo:
    """Sends every message back, and notes what becomes of the call."""

    def __init__(self, call: Call, seen: list) -> None:
        self.call, self.seen, self.ended = call, seen, 0
        seen.append(self)
        self.messages: list[bytes] = []

    def message(self, data: bytes) -> None:
        self.messages.append(data)
        self.call.send(data)
        if data == b"enough":
            self.call.end()
        if data == b"reset":
            self.call.reset()

    def closed(self) -> None:
        self.ended += 1


async def serving(seen):
    return await asyncio.get_running_loop().create_server(
        lambda: Connection(lambda call: Echo(call, seen)), "127.0.0.1", 0
    )


def method(channel):
    return channel.stream_stream("/any/Method", request_serializer=None, response_deserializer=None)


def test_grpcs_own_client_streams_many_and_large_messages():
    grpc = pytest.importorskip("grpc")

    async def test():
        seen: list[Echo] = []
        server = await serving(seen)
        port = server.sockets[0].getsockname()[1]
        options = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            draws = random.Random(2)

            async def one(k):
                call = method(channel)()
                for n in range(draws.randint(1, 6)):
                    sent = bytes([k % 251, n]) * draws.choice((0, 1, 10, 3000, 40_000))
                    await call.write(sent)
                    assert await call.read() == sent
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF
                assert await call.code() == grpc.StatusCode.OK

            await asyncio.gather(*(one(k) for k in range(300)))
            big = random.Random(3).randbytes(24 << 20)  # more than any window
            call = method(channel)()
            await call.write(big)
            assert await call.read() == big
            await call.write(b"enough")
            assert [await call.read(), await call.read()] == [b"enough", grpc.aio.EOF]
            assert await call.code() == grpc.StatusCode.OK
        for _ in range(200):
            if all(echo.ended for echo in seen):
                break
            await asyncio.sleep(0.01)
        assert len(seen) == 301
        assert {echo.ended for echo in seen} == {1}
        server.close()

    run(test)()


@pytest.mark.parametrize("how", ["cancel", "channel", "reset"])
def test_a_call_ends_once_however_it_ends(how):
    grpc = pytest.importorskip("grpc")

    async def test():
        seen: list[Echo] = []
        server = await serving(seen)
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        call = method(channel)()
        await call.write(b"a")
        assert await call.read() == b"a"
        assert seen[0].ended == 0
        if how == "cancel":
            call.cancel()
        elif how == "channel":
            await channel.close()
        else:
            await call.write(b"reset")
            assert await call.code() == grpc.StatusCode.CANCELLED
        for _ in range(200):
            if seen[0].ended:
                break
            await asyncio.sleep(0.01)
        await channel.close()
        assert seen[0].ended == 1
        server.close()

    run(test)()


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.closed = True


async def fed(pieces):
    """What became of the calls of a connection that these bytes came in on."""
    seen: list[Echo] = []
    connection = Connection(lambda call: Echo(call, seen))
    wire = Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    await asyncio.sleep(0)
    open_before = len(connection.calls)
    connection.connection_lost(None)
    assert {echo.ended for echo in seen} <= {1}
    assert not connection.calls
    assert not connection.blocked
    assert connection.unsent_bytes == 0
    return [echo.messages for echo in seen], wire, open_before


def frame(kind, flags, stream, payload=b""):
    return http2._frame(kind, flags, stream, payload)


def grpc_message(data):
    return b"\0" + len(data).to_bytes(4) + data


TALK = (
    PREFACE
    + frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0\x10")  # a window of 16 bytes
    + frame(http2.HEADERS, 0, 1, b"\x82")
    + frame(http2.CONTINUATION, http2.END_HEADERS, 1, b"\x84")
    + frame(http2.DATA, 0, 1, grpc_message(b"first")[:7])
    + frame(http2.HEADERS, http2.END_HEADERS, 3, b"")
    + frame(http2.DATA, 0, 1, grpc_message(b"first")[7:] + grpc_message(b"second, which is longer"))
    + frame(http2.DATA, http2.PADDED, 3, b"\3" + grpc_message(b"padded") + b"\0\0\0")
    + frame(99, 0, 3, b"of a kind to come")
    + frame(http2.PRIORITY, 0, 3, b"\0\0\0\0\1")
    + frame(http2.PING, 0, 0, b"12345678")
    + frame(http2.WINDOW_UPDATE, 0, 1, b"\0\0\1\0")
    + frame(http2.RST_STREAM, 0, 3, b"\0\0\0\x08")
    + frame(http2.DATA, 0, 3, b"too late")
    + frame(http2.DATA, http2.END_STREAM, 1, grpc_message(b"last"))
)


@given(st.lists(st.integers(0, len(TALK)), max_size=12))
def test_however_it_is_split_it_says_the_same(cuts):
    edges = [0, *sorted(cuts), len(TALK)]
    pieces = [TALK[a:b] for a, b in itertools.pairwise(edges) if b > a]
    messages, wire, open_before = asyncio.run(fed(pieces))
    assert messages == [[b"first", b"second, which is longer", b"last"], [b"padded"]]
    assert open_before == 0
    assert not wire.closed
    assert frame(http2.PING, http2.ACK, 0, b"12345678") in wire.data
    # The window of 16 bytes was kept to until it was opened.
    sent = [f for f in frames(wire.data) if f[:2] == (http2.DATA, 1)]
    assert b"".join(payload for _, _, payload in sent) == b"".join(
        grpc_message(m) for m in (b"first", b"second, which is longer", b"last")
    )


def frames(data):
    at, found = 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 3])
        found.append((data[at + 3], int.from_bytes(data[at + 5 : at + 9]), data[at + 9 : at + 9 + size]))
        at += 9 + size
    return found


FRAMES = st.builds(
    frame,
    st.integers(0, 11),
    st.sampled_from([0, 1, 4, 5, 8, 13]),
    st.integers(0, 7),
    st.one_of(st.binary(max_size=30), st.binary(max_size=20).map(grpc_message)),
)


@given(st.lists(st.one_of(FRAMES, st.binary(max_size=20)), max_size=12), st.booleans())
def test_whatever_comes_calls_end_once_and_nothing_is_left(parts, greeted):
    asyncio.run(fed([PREFACE if greeted else b"", *parts] if greeted else parts or [b"x"]))


@pytest.mark.parametrize(
    "talk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREFACE + frame(http2.HEADERS, http2.END_HEADERS, 2),
        PREFACE + frame(http2.CONTINUATION, http2.END_HEADERS, 1),
        PREFACE + frame(http2.HEADERS, 0, 1) + frame(http2.DATA, 0, 1),
        PREFACE + frame(http2.DATA, 0, 5, b"x"),
        PREFACE + b"\xff\xff\xff\0\0\0\0\0\1",
        PREFACE + frame(http2.PUSH_PROMISE, 0, 1),
        PREFACE + frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
    ],
)
def test_what_is_no_http2_is_hung_up_on(talk):
    _, wire, _ = asyncio.run(fed([talk]))
    assert wire.closed
    assert frames(wire.data)[-1][0] == http2.GOAWAY


@pytest.mark.parametrize("start", [b"\1\0\0\0\1x", b"\0\xff\xff\xff\xff"])
def test_a_message_compressed_or_too_long_resets_its_call_only(start):
    talk = PREFACE + frame(http2.HEADERS, http2.END_HEADERS, 1) + frame(http2.DATA, 0, 1, start)
    talk += frame(http2.HEADERS, http2.END_HEADERS, 3) + frame(http2.DATA, 0, 3, grpc_message(b"well"))
    messages, wire, _ = asyncio.run(fed([talk]))
    assert messages == [[], [b"well"]]
    assert not wire.closed
