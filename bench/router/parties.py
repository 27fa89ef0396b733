"""The parties of the proxy bench, each in a process of its own: an engine that costs little, a load, a bare proxy.

``python bench/router/parties.py ROLE ...`` prints one line of JSON when it is ready or done.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

import uvloop

PAGE = "".join(
    f'vllm:num_requests_{kind}{{engine="{rank}",model_name="tiny"}} 0.0\n'
    for kind in ("running", "waiting")
    for rank in range(8)
).encode()
ANSWER = (
    b'{"id":"cmpl-1","object":"text_completion","created":1796014641,"model":"tiny","choices":[{"index":0,"text":"'
    + b" word" * 16
    + b'","logprobs":null,"finish_reason":"length"}],'
    + b'"usage":{"prompt_tokens":8,"total_tokens":24,"completion_tokens":16}}'
)
EVENT = (
    b'data: {"id":"chatcmpl-00000000000000000000000000000001","object":"chat.completion.chunk","created":1796014641,'
    b'"model":"tiny","choices":[{"index":0,"delta":{"content":" %017d"},"logprobs":null,"finish_reason":null}]}\n\n'
)
ASKED = re.compile(rb"chunks=(\d+) interval_ms=(\d+)")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def message(data: bytearray) -> tuple[bytes, int] | None:
    """Headers of the first whole message, in lower case, and its length."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(data[:end]).lower()
    at = head.find(b"content-length:")
    length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
    return (head, end + 4 + length) if len(data) >= end + 4 + length else None


class Engine(asyncio.Protocol):
    """Answers at once, or streams the events the message asks for: routers drop headers and fields they do not know."""

    def connection_made(self, transport):
        self.transport, self.data, self.loop = transport, bytearray(), asyncio.get_running_loop()

    def data_received(self, data):
        self.data += data
        while (found := message(self.data)) is not None:
            head, length = found
            found = ASKED.search(self.data, len(head), length)
            asked = found and (int(found[1]), int(found[2]) / 1000.0)
            del self.data[:length]
            if head.startswith(b"get "):
                body = PAGE if b"/metrics" in head[:20] else b'{"dp_size":8,"model_path":"tiny"}'
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            elif asked is not None:
                self.transport.write(HEAD)
                self.send(*asked)
            else:
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                    % (len(ANSWER), ANSWER)
                )

    def send(self, left, interval_s):
        if self.transport.is_closing():
            return
        event = EVENT % time.monotonic_ns()
        last = left == 1
        self.transport.write(
            b"%x\r\n%b\r\n" % (len(event), event) + (b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" if last else b"")
        )
        if not last:
            if interval_s:
                self.loop.call_later(interval_s, self.send, left - 1, interval_s)
            else:
                self.loop.call_soon(self.send, left - 1, 0.0)


class Client(asyncio.Protocol):
    """Sends a request again and again; counts answers and chunks, and how late chunks are."""

    def __init__(self, request, lates, ends_s):
        self.request, self.lates, self.ends_s = request, lates, ends_s
        self.requests = self.chunks = 0
        self.seconds = []
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport, self.tail = transport, b""
        self.begin()

    def begin(self):
        self.began = time.monotonic()
        if self.began > self.ends_s:
            self.transport.close()
            return
        self.length = -1
        self.transport.write(self.request)

    def data_received(self, data):
        if self.length >= 0:
            self.length -= len(data)
            if self.length <= 0:
                self.done()
            return
        if not self.tail and data.startswith(b"HTTP/1.1"):
            head, _, rest = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                sys.exit(f"answered {data[:400]!r}")
            low = head.lower()
            at = low.find(b"content-length:")
            if at >= 0:
                self.length = int(low[at + 15 :].split(b"\r\n", 1)[0]) - len(rest)
                if self.length <= 0:
                    self.done()
                return
            data = rest
        text = self.tail + data
        found = text.count(b"chat.completion.chunk")
        if found:
            self.chunks += found
            if self.lates is not None:
                now, at = time.monotonic_ns(), 0
                while (at := text.find(b'"content":" ', at) + 12) > 11 and len(text) >= at + 17:
                    self.lates.append(now - int(text[at : at + 17]))
        if text.endswith(b"0\r\n\r\n"):
            self.tail = b""
            self.done()
        else:
            # an event is counted when its name is there whole, and it is mostly whole
            last = text.rfind(b"\n\n")
            self.tail = text[last:] if last >= 0 and last < len(text) - 4 else b"\0"

    def done(self):
        self.requests += 1
        self.seconds.append(time.monotonic() - self.began)
        self.begin()

    def connection_lost(self, error):
        if not self.gone.done():
            self.gone.set_result(error)


async def engine():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Engine, "127.0.0.1", 0, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.Event().wait()


async def load(port, streams, seconds, chunks, interval_ms):
    wanted = f"chunks={chunks} interval_ms={interval_ms:.0f}" if chunks else ""
    body = json.dumps(
        {
            "model": "tiny",
            "stream": bool(chunks),
            "max_tokens": 64,
            "messages": [{"role": "user", "content": "word " * 64 + wanted}],
        }
    ).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: */*\r\nUser-Agent: bench\r\nAuthorization: Bearer abcdefgh\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    lates = [] if interval_ms else None
    began_s = time.monotonic()
    clients = []
    for _ in range(streams):
        _, client = await loop.create_connection(
            lambda: Client(request, lates, began_s + seconds), "127.0.0.1", port
        )
        clients.append(client)
        if interval_ms:
            await asyncio.sleep(interval_ms / 1000.0 / streams)
    await asyncio.gather(*(client.gone for client in clients))
    spent_s = time.monotonic() - began_s
    times = sorted(s for client in clients for s in client.seconds)
    late = sorted(lates or [0])
    print(
        json.dumps(
            {
                "requests": sum(client.requests for client in clients),
                "chunks": sum(client.chunks for client in clients),
                "spent_s": spent_s,
                "p50_ms": 1e3 * times[len(times) // 2],
                "late_p50_ms": late[len(late) // 2] / 1e6,
                "late_p99_ms": late[int(len(late) * 0.99)] / 1e6,
            }
        )
    )


async def decide(port, seconds):
    """One question after the other, each lease given back; the time of the questions alone."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def post(path, document):
        body = json.dumps(document).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        began_s = time.monotonic()
        writer.write(head.encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
        return time.monotonic() - began_s, json.loads(body)

    times, ends_s = [], time.monotonic() + seconds
    while time.monotonic() < ends_s:
        spent_s, chosen = await post("/v1/decide", {"context_tokens": 5_000, "session": "s"})
        times.append(spent_s)
        await post("/v1/release", {"lease": chosen["lease"], "output_tokens": 100})
    times.sort()
    print(json.dumps({"p50_ms": 1e3 * times[len(times) // 2], "p99_ms": 1e3 * times[int(len(times) * 0.99)]}))


async def bare(upstream):
    """What one writes first with aiohttp: a handler, a session, chunks passed on as they come."""
    import aiohttp
    from aiohttp import web

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )

    async def handler(request):
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "content-length")}
        async with session.post(f"{upstream}{request.rel_url}", data=body, headers=headers) as answer:
            kept = {
                k: v
                for k, v in answer.headers.items()
                if k.lower() not in ("content-length", "transfer-encoding")
            }
            out = web.StreamResponse(status=answer.status, headers=kept)
            if answer.content_length is not None:
                out.content_length = answer.content_length
            await out.prepare(request)
            async for chunk in answer.content.iter_any():
                await out.write(chunk)
            await out.write_eof()
            return out

    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(json.dumps({"port": site._server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.Event().wait()


async def ours(upstream, ranks):
    from equipoise.engines import WorkerSpec
    from equipoise.serve.config_file import read_config
    from equipoise.serve.run import settle_collector
    from equipoise.serve.service import Service

    config = read_config(
        None,
        {
            "workers": (WorkerSpec(upstream, ranks=ranks),),
            "port": 0,
            "admin_port": 0,
            "kv_capacity_tokens": 1 << 24,
        },
    )
    async with Service(config) as service:
        settle_collector()
        print(json.dumps({"port": service.port}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "engine":
        uvloop.run(engine())
    elif role == "bare":
        uvloop.run(bare(rest[0]))
    elif role == "decide":
        uvloop.run(decide(int(rest[0]), float(rest[1])))
    elif role == "ours":
        uvloop.run(ours(rest[0], int(rest[1])))
    else:
        uvloop.run(load(int(rest[0]), int(rest[1]), float(rest[2]), int(rest[3]), float(rest[4])))
