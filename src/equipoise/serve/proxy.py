"""The data path: a request comes in, a rank is chosen, the bytes go there and back.

The body is forwarded as it came, the answer chunk by chunk; between them stands a lease that ends with the exchange,
however that ends. Second tries are made only before the first byte of an answer, on another instance, under a budget.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from dataclasses import dataclass
from io import BytesIO

import aiohttp
from aiohttp import web
from yarl import URL

from equipoise.engines import Pin, request_facts
from equipoise.errors import InputError
from equipoise.router import Arrival, Reject
from equipoise.serve.answers import NAME, REASON, refusal, refused_by_router
from equipoise.serve.body import read_body
from equipoise.serve.driver import Driver, Lease
from equipoise.serve.exchange import Exchange, Exchanges, Failure, failure
from equipoise.serve.forward import answer_headers, pinned_body, request_headers
from equipoise.serve.lengths import Lengths, context_of
from equipoise.serve.quiet import QuietLog
from equipoise.serve.relay import relay
from equipoise.serve.retries import RetryBudget
from equipoise.serve.settings import Forwarding, Timeouts
from equipoise.serve.tally import Tally
from equipoise.serve.targets import Target

__all__ = ["Proxy"]

_log = logging.getLogger(__name__)

LARGE_BODY = 1 << 20
"""Above it a body is written in pieces, so that other streams get their turn in between."""
CLASS_HEADER = "x-equipoise-class"


@dataclass(slots=True)
class _Asked:
    """What is known of a request once it has been read."""

    path: str
    body: bytes
    arrival: Arrival
    model: str
    prompt_bytes: int
    began_s: float


class Proxy:
    """Serves the routes that generate.

    Parameters
    ----------
    driver : Driver
        Its targets are `Target`.
    session : aiohttp.ClientSession
        Towards the engines.
    forwarding : Forwarding
    timeouts : Timeouts
    tally : Tally
    lengths : Lengths
    body_limit, bodies_limit : int
        Bytes of one body, and of all that are held.
    """

    def __init__(
        self,
        driver: Driver,
        session: aiohttp.ClientSession,
        forwarding: Forwarding,
        timeouts: Timeouts,
        tally: Tally,
        lengths: Lengths,
        *,
        body_limit: int,
        bodies_limit: int,
    ) -> None:
        self.driver, self.session, self.tally, self.lengths = driver, session, tally, lengths
        self.forwarding, self.timeouts = forwarding, timeouts
        self.body_limit, self.bodies_limit = body_limit, bodies_limit
        self.exchanges = Exchanges(timeouts.shortest_s)
        self.draining = False
        self.budget = RetryBudget(forwarding.retry_share, forwarding.retry_burst)
        self._quiet = QuietLog(_log)
        self._loop = asyncio.get_running_loop()
        self._connect = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s or None)
        self._urls: dict[tuple[str, str], URL] = {}
        self._mark = os.urandom(4).hex()
        self._numbers = itertools.count()

    async def generate(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer one request that occupies a rank."""
        tally = self.tally
        tally.requests.add(path)
        if self.draining:
            tally.refused.add("draining")
            return refusal(503, "draining", "the router is shutting down", retry_after_s=1, close=True)
        exchange = self.exchanges.begin(self.timeouts.total_s)
        tally.streams += 1
        held = 0
        out: web.StreamResponse
        try:
            exchange.phase("body_timeout", self._loop.time(), self.timeouts.body_s)
            body = await read_body(request, self.body_limit, tally.body_bytes, self.bodies_limit)
            held = len(body)
            tally.body_bytes += held
            asked = self._understand(request, path, body)
            out = await self._carry(request, exchange, asked)
        except Failure as error:
            out = self._failed(request, error)
        except InputError as error:
            tally.refused.add("bad_body")
            out = refusal(400, "bad_body", str(error))
        except asyncio.CancelledError:
            stopped = exchange.stopped()
            if stopped is None:
                tally.failed.add("client_gone")
                raise
            out = self._failed(request, stopped)
        finally:
            self.exchanges.under_way.discard(exchange)
            tally.streams -= 1
            tally.body_bytes -= held
        tally.answers.add(str(out.status))
        return out

    # -- before --------------------------------------------------------------------------------------------------

    def _understand(self, request: web.BaseRequest, path: str, body: bytes) -> _Asked:
        facts = request_facts(path, body, request.headers)
        arrival = Arrival(
            f"{self._mark}{next(self._numbers):x}",
            context_of(self.lengths, facts, path, body),
            facts.budget_tokens,
            facts.session,
            request.headers.get(CLASS_HEADER, "default"),
            len(body),
        )
        return _Asked(path, body, arrival, facts.model, facts.prompt_bytes, self.driver.now_s())

    def _failed(self, request: web.BaseRequest, error: Failure) -> web.StreamResponse:
        """A failure before the answer has begun."""
        self._note(error.reason)
        table = self.tally.refused if error.status in (411, 413, 415, 429) else self.tally.failed
        table.add(error.reason)
        answer = refusal(
            error.status,
            error.reason,
            error.message,
            retry_after_s=1.0 if error.status in (429, 503) else 0.0,
            close=not request.content.is_eof(),
        )
        return answer

    def _note(self, reason: str) -> None:
        if reason.endswith("_timeout") or reason == "slow_client":
            self.tally.timeouts.add(reason.removesuffix("_timeout"))

    # -- towards an engine ---------------------------------------------------------------------------------------

    async def _carry(self, request: web.BaseRequest, exchange: Exchange, asked: _Asked) -> web.StreamResponse:
        """Place it, ask the engine, answer; again elsewhere if that is allowed."""
        self.budget.deposit()
        avoid, first_failure, tries = None, None, 0
        while True:
            exchange.phase("", 0.0, 0.0)  # how long it may be queued is the router's to say
            placed = await self.driver.place(asked.arrival, avoid=avoid)
            if isinstance(placed, Reject):
                if first_failure is not None:
                    raise first_failure  # what went wrong, not that there is nobody else
                self.tally.refused.add(placed.reason)
                return refused_by_router(placed)
            if not tries:
                self.tally.queue_s.add(self.driver.now_s() - asked.began_s)
            target: Target = placed.target
            placed.on_abort = exchange.stop
            try:
                with placed:
                    return await self._attempt(request, exchange, asked, placed, target)
            except asyncio.CancelledError:
                stopped = exchange.stopped()
                if stopped is None:
                    raise
                error = stopped
            except Failure as failed:
                error = failed
            self._quiet(f"{target.name} {error.reason}", f"{target.name} rank {placed.rank}: {error.reason}")
            first_failure = first_failure or error
            tries += 1
            if not error.retry or tries > self.forwarding.retries or self.draining:
                raise error
            if not self.budget.withdraw():
                self.tally.retries_refused += 1
                raise error
            self._note(error.reason)
            self.tally.retries.add(error.reason)
            avoid = target.name

    async def _attempt(
        self, request: web.BaseRequest, exchange: Exchange, asked: _Asked, lease: Lease, target: Target
    ) -> web.StreamResponse:
        forwarding = self.forwarding
        try:
            pin = target.pin(lease.rank, asked.path)
            node = target.node_of(lease.rank)
            body = pinned_body(asked.body, pin, node.engine.kind, behind_pd_proxy=forwarding.behind_pd_proxy)
        except InputError:
            lease.aborted("cancelled")  # nobody was asked
            raise
        headers = request_headers(
            request.headers,
            asked.arrival.request_id,
            forwarding.key_of(target.name),
            keep_authorization=forwarding.keep_authorization,
            behind_pd_proxy=forwarding.behind_pd_proxy,
        )
        headers += pin.headers
        exchange.phase("first_byte_timeout", self._loop.time(), self.timeouts.first_byte_s)
        try:
            answer = await self._send(request, asked.path, pin, headers, body)
        except Failure as error:
            lease.aborted(error.reason)
            raise
        except asyncio.CancelledError:
            lease.aborted(exchange.why or "client_gone")
            raise
        exchange.answer = answer
        try:
            return await self._answer(request, exchange, asked, lease, target, answer)
        finally:
            exchange.answer = None
            # At its end the connection has gone back to the pool and this does nothing; before, the engine sees it
            # closed and stops.
            answer.close()

    async def _send(
        self,
        request: web.BaseRequest,
        path: str,
        pin: Pin,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> aiohttp.ClientResponse:
        query = request.raw_path.partition("?")[2]
        url = self._urls.get((pin.url, path))
        if url is None:
            url = self._urls[pin.url, path] = URL(pin.url + path, encoded=True)
        if query:
            url = URL(f"{pin.url}{path}?{query}", encoded=True)
        try:
            return await self.session.request(
                request.method,
                url,
                data=body if len(body) <= LARGE_BODY else BytesIO(body),
                headers=headers,
                allow_redirects=False,
                timeout=self._connect,
            )
        except aiohttp.ConnectionTimeoutError as error:
            raise failure("connect_timeout") from error
        except aiohttp.ClientConnectorError as error:
            raise failure("connect_error") from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
            raise failure("reset") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise failure("bad_answer") from error

    async def _answer(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        asked: _Asked,
        lease: Lease,
        target: Target,
        answer: aiohttp.ClientResponse,
    ) -> web.StreamResponse:
        status = answer.status
        self.tally.upstream_status.add(str(status))
        self.tally.first_byte_s.add(self.driver.now_s() - asked.began_s)
        if status == 503 and lease.ended is None:
            # The engine says that it has not begun; what it says is kept in case nobody else can either.
            lease.aborted("engine_unavailable")
            if self.forwarding.retries and len(self.driver.targets) + len(self.driver.elsewhere()) > 1:
                raise failure("engine_unavailable")
        headers = answer_headers(answer.headers)
        headers["Server"] = NAME
        if status >= 400:
            headers[REASON] = "engine"
        if self.forwarding.reveal:
            headers["x-equipoise-worker"] = target.name
            headers["x-equipoise-rank"] = str(lease.rank)
            headers["x-equipoise-decision"] = lease.reason
        return await relay(self, request, exchange, lease, target, answer, headers, asked)

    # -- the end -------------------------------------------------------------------------------------------------

    def learn(self, asked: _Asked, prompt_tokens: int) -> None:
        """An engine has said how long a prompt was."""
        if prompt_tokens > 0 and asked.prompt_bytes:
            self.lengths.learn(asked.model, prompt_bytes=asked.prompt_bytes, prompt_tokens=prompt_tokens)
