"""An engine's answer to the client, chunk by chunk, with its tokens counted as they pass.

Back pressure: what the client has not taken stays in its connection's buffer up to the high-water mark; then the engine
is not read any further, and the engine's connection fills up to its own. Who takes nothing for too long is let go.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from aiohttp.http import StreamWriter
from multidict import CIMultiDict

from equipoise.engines import TokenCounter
from equipoise.serve.answers import sse_error
from equipoise.serve.driver import Lease
from equipoise.serve.exchange import Exchange, Failure, failure
from equipoise.serve.targets import Target

if TYPE_CHECKING:
    from equipoise.serve.proxy import Proxy

__all__ = ["relay"]

TAIL = 2048
WHOLE = 256 << 10
"""An answer of known length up to so many bytes is read whole and sent in one piece."""


async def relay(
    proxy: Proxy,
    request: web.BaseRequest,
    exchange: Exchange,
    lease: Lease,
    target: Target,
    answer: aiohttp.ClientResponse,
    headers: CIMultiDict[str],
    asked: Any,
) -> web.StreamResponse:
    """Pass an answer on; the lease is ended before this returns or raises.

    Raises
    ------
    Failure
        It went wrong before anything was sent to the client.
    """
    sse = answer.headers.get("Content-Type", "").startswith("text/event-stream")
    counter = TokenCounter(sse=sse, tokens_per_event=proxy.lengths.per_event(asked.model) if sse else 1.0)
    exchange.phase("idle_timeout", proxy._loop.time(), proxy.timeouts.idle_s)
    length = answer.content_length
    if not sse and length is not None and length <= WHOLE:
        try:
            body = await answer.read()
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            lease.aborted("reset_midway")
            raise failure("reset_midway") from error
        # Engines put their counts at the end; where they do not, all of it is looked at.
        if b'"usage"' in body[-TAIL:] or b'"meta_info"' in body[-TAIL:]:
            counter.feed(body[-TAIL:])
        else:
            counter.feed(body)
        counter.end()
        target.heard_s = proxy.driver.now_s()
        _ended(proxy, lease, counter, answer.status, asked)
        return web.Response(body=body, status=answer.status, headers=headers)
    lease.first_token()
    out = web.StreamResponse(status=answer.status, headers=headers)
    broken = await _stream(proxy, request, exchange, lease, target, answer, counter, out)
    if broken is None:
        _ended(proxy, lease, counter, answer.status, asked)
        await out.write_eof()
        return out
    lease.aborted(broken.reason)
    if not out.prepared:
        raise broken
    proxy.tally.failed.add(broken.reason)
    proxy._note(broken.reason)
    await _break_off(request, exchange, out, broken, sse, proxy.timeouts.slow_client_s)
    return out


async def _stream(
    proxy: Proxy,
    request: web.BaseRequest,
    exchange: Exchange,
    lease: Lease,
    target: Target,
    answer: aiohttp.ClientResponse,
    counter: TokenCounter,
    out: web.StreamResponse,
) -> Failure | None:
    """Pass chunks on until there are no more: None, or why it could not go on to its end."""
    tally, driver, timeouts, loop = proxy.tally, proxy.driver, proxy.timeouts, proxy._loop
    protocol, transport = request.protocol, request.transport
    read, feed = answer.content.readany, counter.feed
    try:
        writer = await out.prepare(request)
        assert isinstance(writer, StreamWriter)
        if transport is None:
            raise ConnectionResetError("the client has left")
        while chunk := await read():
            new = feed(chunk)
            if new:
                lease.tokens(new)
                tally.tokens += new
            tally.chunks += 1
            target.heard_s = driver._now_s
            exchange.moved = True
            if writer.chunked and writer.output_size:
                # What the writer would do, in one piece: most of what a chunk costs is calls.
                if transport.is_closing():
                    raise ConnectionResetError("the client has left")
                transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            else:
                await writer.write(chunk, drain=False)
            if protocol.writing_paused:
                exchange.phase("slow_client", loop.time(), timeouts.slow_client_s)
                await writer.drain()
                exchange.phase("idle_timeout", loop.time(), timeouts.idle_s)
        new = counter.end()
        if new:
            lease.tokens(new)
            tally.tokens += new
    except asyncio.CancelledError:
        stopped = exchange.stopped()
        if stopped is None:
            lease.aborted("client_gone")
            raise
        return stopped
    except (aiohttp.ClientConnectionResetError, ConnectionResetError) as error:
        # Of the two sides only the client's is written to.
        if request.transport is None or request.transport.is_closing():
            lease.aborted("client_gone")
            proxy.tally.failed.add("client_gone")
            raise
        return _named(error)
    except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
        # RuntimeError: what aiohttp has to say of a connection that was closed before one reads on.
        return _named(error)
    return None


def _named(error: Exception) -> Failure:
    found = failure("reset_midway")
    found.__cause__ = error
    return found


def _ended(proxy: Proxy, lease: Lease, counter: TokenCounter, status: int, asked: Any) -> None:
    """The answer is complete."""
    if status >= 500:
        lease.aborted(f"status_{status}")
    elif status >= 400:
        lease.aborted("refused")
    elif counter.failed:
        # A streamed request may be refused by an event of a 200: that is its client's fault, not the engine's.
        lease.aborted("refused" if 400 <= counter.error_status < 500 else "error_event")
    else:
        proxy.learn(asked, counter.prompt_tokens)
        prompt = counter.prompt_tokens if counter.prompt_tokens > 0 else None
        output = counter.output_tokens if counter.exact else None
        if prompt is not None or output is not None:
            lease.usage(prompt, output)
        if counter.exact and counter.events:
            proxy.lengths.learn_event(asked.model, counter.events, counter.output_tokens)
        lease.finished()


async def _break_off(
    request: web.BaseRequest,
    exchange: Exchange,
    out: web.StreamResponse,
    error: Failure,
    sse: bool,
    patience_s: float,
) -> None:
    """End an answer that has begun: with an error event if the client can take one, else by cutting it off."""
    transport = request.transport
    if transport is None:
        return
    if sse and error.reason != "slow_client":
        exchange.phase("slow_client", asyncio.get_running_loop().time(), patience_s)
        try:
            await out.write(sse_error(error.status, error.reason, error.message))
            await out.write_eof()
            return
        except (ConnectionError, asyncio.CancelledError) as failed:
            if isinstance(failed, asyncio.CancelledError) and exchange.stopped() is None:
                raise
    out.force_close()
    transport.abort()
