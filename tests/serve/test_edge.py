"""Raw bytes against the edge: what cannot be framed without doubt is refused, and nothing of it is repeated."""

from __future__ import annotations

import asyncio
import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from serve_cases import asked, mock, on_a_loop, stage

BODY = json.dumps(asked()).encode()
CL = b"Content-Length: %d\r\n" % len(BODY)


async def spoken(s, data: bytes, port: int = 0, *, half_close: bool = False) -> bytes:
    """What comes back for some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port or s.service.port)
    writer.write(data)
    if half_close:
        writer.write_eof()
    data = b""
    try:
        async with asyncio.timeout(20):
            while part := await reader.read(65_536):
                data += part
    except ConnectionError:
        pass
    except TimeoutError:
        return b"(and then nothing, with the connection open) " + data
    finally:
        writer.close()
    return data


def post(
    head: bytes = b"", body: bytes = BODY, path: bytes = b"/v1/completions", host: bytes = b"Host: a\r\n"
) -> bytes:
    return b"POST %b HTTP/1.1\r\n%bConnection: close\r\n%b\r\n%b" % (path, host, head, body)


CASES = {
    "both a length and an encoding": (post(CL + b"Transfer-Encoding: chunked\r\n"), 400),
    "an encoding and a length": (post(b"Transfer-Encoding: chunked\r\n" + CL, b"0\r\n\r\n"), 400),
    "two lengths": (post(CL + b"Content-Length: 5\r\n"), 400),
    "the same length twice": (post(CL + CL), 400),
    "a list of lengths": (post(b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))), 400),
    "a length with a sign": (post(b"Content-Length: +%d\r\n" % len(BODY)), 400),
    "a length below zero": (post(b"Content-Length: -1\r\n"), 400),
    "a length in hex": (post(b"Content-Length: 0x10\r\n"), 400),
    "two encodings": (post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"), 400),
    "an encoding nobody knows": (post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), 400),
    "gzip, chunked": (post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 400),
    "chunked, chunked": (post(b"Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n"), 400),
    "an encoding folded over lines": (post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"), 400),
    "an encoding with a space before the colon": (
        post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"),
        400,
    ),
    "an encoding in HTTP/1.0": (
        post(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n").replace(b"1.1", b"1.0"),
        400,
    ),
    "a bad chunk size": (post(b"Transfer-Encoding: chunked\r\n", b"zz\r\nabc\r\n0\r\n\r\n"), 400),
    "a chunk longer than it says": (post(b"Transfer-Encoding: chunked\r\n", b"2\r\nabc\r\n0\r\n\r\n"), 400),
    "a chunk size beyond all bounds": (
        post(b"Transfer-Encoding: chunked\r\n", b"fffffffffffffffff\r\nabc"),
        400,
    ),
    "two hosts": (post(CL, host=b"Host: a\r\nHost: b\r\n"), 400),
    "the same host twice": (post(CL, host=b"Host: a\r\nhost: a\r\n"), 400),
    "no host": (post(CL, host=b""), 400),
    "a host with a path": (post(CL, host=b"Host: a/b\r\n"), 400),
    "a host with a name and a key": (post(CL, host=b"Host: u@a\r\n"), 400),
    "an empty host": (post(CL, host=b"Host: \r\n"), 400),
    "two keys": (post(CL + b"Authorization: a\r\nAuthorization: b\r\n"), 400),
    "a header without a name": (post(CL + b": x\r\n"), 400),
    "a header without a colon": (post(CL + b"x\r\n"), 400),
    "a null byte in a header": (post(CL + b"X: a\0b\r\n"), 400),
    "a bare carriage return in a header": (post(CL + b"X: a\rY: b\r\n"), 400),
    "a header larger than all may be": (post(CL + b"X: %b\r\n" % (b"a" * 17_000)), 431),
    "headers larger than they may be": (
        post(CL + b"".join(b"X%d: %b\r\n" % (k, b"a" * 800) for k in range(30))),
        431,
    ),
    "more headers than there may be": (post(CL + b"".join(b"X%d: a\r\n" % k for k in range(200))), 431),
    "a path larger than it may be": (post(CL, path=b"/" + b"a" * 20_000), 431),
    "a body larger than it may be": (post(b"Content-Length: 99999999999\r\n", b""), 413),
    "a chunked body larger than it may be": (
        post(b"Transfer-Encoding: chunked\r\n", b"20000\r\n%b\r\n" % (b" " * 0x20000) * 2),
        413,
    ),
    "a compressed body": (post(CL + b"Content-Encoding: gzip\r\n"), 415),
    "a path nobody serves": (post(CL, path=b"/v1/embeddings"), 404),
    "a path with dots": (post(CL, path=b"/v1/../v1/completions"), 404),
    "a path in escapes": (post(CL, path=b"/v1/%63ompletions"), 404),
    "a path with two slashes": (post(CL, path=b"//v1/completions"), 404),
    "another server's address": (post(CL, path=b"http://10.0.0.1/v1/completions"), 404),
    "a method that is not taken": (post(CL).replace(b"POST", b"PUT"), 405),
    "a method nobody knows": (post(CL).replace(b"POST", b"BREW"), 400),
    "a method with a line end": (post(CL).replace(b"POST", b"PO\r\nST"), 400),
    "CONNECT": (b"CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    "another protocol": (post(CL + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"), 400),
    "another version": (post(CL).replace(b"HTTP/1.1", b"HTTP/1.9"), 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
}


def test_what_is_refused():
    @on_a_loop
    async def body():
        async with stage(mock(), limits__body_bytes=200_000) as s:
            wrong = {}
            for name, (data, status) in CASES.items():
                answer = await spoken(s, data)
                first = answer.split(b"\r\n", 1)[0]
                if (
                    not re.match(rb"HTTP/1\.[01] %d " % status, first)
                    or answer.count(b"Content-Length:") != 1
                ):
                    wrong[name] = answer[:200]
                if status in (400, 431, 413) and b"x-equipoise-reason" not in answer:
                    wrong[name] = answer[:300]
            assert wrong == {}
            assert s.engine.seen()["answers"] == {}, "nothing came through"
            assert sum(s.service.tally.refused.of.values()) >= len(CASES)

    body()


def test_a_refused_request_smuggles_no_second_one():
    @on_a_loop
    async def body():
        async with stage(mock()) as s:
            second = post(CL)
            for head, first in (
                (CL + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
                (b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", b""),
                (b"Content-Length: 3\r\nContent-Length: %d\r\n" % len(second), b"abc"),
            ):
                answer = await spoken(s, post(head, first).replace(b"Connection: close\r\n", b"") + second)
                assert answer[9:12] == b"400"
                assert answer.count(b"Content-Length:") == 1
            assert s.engine.seen()["answers"] == {}

    body()


def test_refusals_repeat_nothing():
    @on_a_loop
    async def body():
        async with stage(mock()) as s:
            secret = b"sk-verysecretkey"
            for data in (
                post(CL + b"Authorization: Bearer %b\r\nAuthorization: Bearer %b\r\n" % (secret, secret)),
                post(CL + b"X-%b\r\n" % secret),
                post(CL + b"Authorization: Bearer %b\r\nX: \0\r\n" % secret),
                post(CL, path=b"/%b" % secret),
                post(b"Content-Length: %d\r\n" % len(secret), secret),
            ):
                assert secret not in await spoken(s, data)

    body()


def test_no_secret_in_logs(caplog):
    @on_a_loop
    async def body():
        options = {"api_key": "sk-client-secret", "forwarding__worker_key": "sk-engine-secret"}
        async with stage(mock(), admin_token="sk-admin-secret", **options) as s:
            s.engine.faults.add("reset", count=1, after_tokens=1)
            key = b"Authorization: Bearer sk-client-secret\r\n"
            await spoken(s, post(CL + key))
            await spoken(s, post(CL + key + key))
            await spoken(s, post(CL + key + b"X: \0\r\n"))
            await spoken(s, post(CL + b"Authorization: Bearer sk-wrong-secret\r\n"))

    with caplog.at_level("DEBUG"):
        body()
    assert "secret" not in caplog.text


def test_good_requests_one_after_the_other_on_a_connection():
    @on_a_loop
    async def body():
        async with stage(mock()) as s:
            one = post(CL).replace(b"Connection: close\r\n", b"")
            chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
            two = post(b"Transfer-Encoding: chunked\r\n", chunked).replace(b"Connection: close\r\n", b"")
            old = b"POST /v1/completions HTTP/1.0\r\n%b\r\n%b" % (CL, BODY)
            answer = await spoken(s, one + two + one + old)
            assert answer.count(b"200 OK") == 4
            stream = json.dumps(asked(stream=True)).encode()
            plain = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(stream), stream)
            answer = await spoken(s, plain)
            assert b"chunked" not in answer.lower()
            assert answer.endswith(b"data: [DONE]\n\n")

    body()


def test_connections_are_capped():
    @on_a_loop
    async def body():
        async with stage(mock(), limits__connections=5) as s:
            held = [await asyncio.open_connection("127.0.0.1", s.service.port) for _ in range(5)]
            for _, writer in held:  # a connection counts once it was seen
                writer.write(b"GET /liveness HTTP/1.1\r\nHost: a\r\n\r\n")
            for reader, _ in held:
                await reader.readuntil(b"}")
            answer = await spoken(s, b"GET /liveness HTTP/1.1\r\nHost: a\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 503") or answer == b""
            assert s.service.tally.refused["connections"] == 1
            for _, writer in held:
                writer.close()
            await s.until(lambda: not s.service._edges[0]._connections)
            assert b"200 OK" in await spoken(s, b"GET /liveness HTTP/1.0\r\nHost: a\r\n\r\n")

    body()


def test_bytes_of_all_bodies_are_capped():
    @on_a_loop
    async def body():
        async with stage(mock(manual=True), limits__bodies_bytes=3_000) as s:
            big = asked(prompt="x" * 2_000)
            first = asyncio.ensure_future(s.client.post(s.url + "/v1/completions", json=big).__aenter__())
            await s.until(lambda: s.view().leases == 1)
            async with s.client.post(s.url + "/v1/completions", json=big) as answer:
                assert (answer.status, answer.headers["x-equipoise-reason"]) == (429, "bodies")
            s.engine.step(6)
            assert (await first).status == 200

    body()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.binary(max_size=300) | st.just(post(CL)) | st.sampled_from([d for d, _ in CASES.values()]),
        max_size=5,
    )
)
def test_any_bytes(parts):
    data = b"".join(parts)

    @on_a_loop
    async def body():
        async with stage(mock(ranks=1), limits__body_bytes=200_000) as s:
            answer = await spoken(s, data, half_close=True)
            assert b" 500 " not in answer.split(b"\r\n", 1)[0]
            async with s.client.get(s.url + "/health") as health:
                assert health.status == 200

    body()
