"""The decision API: where a request should go, for people whose own data plane carries the bytes.

``POST /v1/decide`` takes a rank, ``/v1/report`` tells how far requests have come, ``/v1/release`` gives ranks back. A
lease of which nothing is heard for the lease TTL ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Iterable

import msgspec
from aiohttp import web

from equipoise.engines.facts import GENERATING
from equipoise.errors import InputError
from equipoise.router import Arrival, RankReport, Reject
from equipoise.serve.answers import WORDS, json_answer, refusal
from equipoise.serve.body import read_body
from equipoise.serve.driver import Driver
from equipoise.serve.exchange import Failure
from equipoise.serve.lease import Lease
from equipoise.serve.lengths import Lengths
from equipoise.serve.questions import (
    Ask,
    AskMany,
    Chosen,
    Counted,
    Ended,
    EndedMany,
    Progress,
    RankLoadReport,
    Report,
    schemas,
)
from equipoise.serve.replicas.peers import PeerError
from equipoise.serve.replicas.relay import Relay
from equipoise.serve.tally import Tally
from equipoise.serve.targets import Target

__all__ = ["DecideApi", "schemas"]

BODY_LIMIT = 1 << 20


class DecideApi:
    """Serves the three routes.

    Parameters
    ----------
    driver : Driver
        Its targets are `Target`.
    tally : Tally
    lengths : Lengths
    """

    def __init__(self, driver: Driver, tally: Tally, lengths: Lengths) -> None:
        self.driver, self.tally, self.lengths = driver, tally, lengths
        self.draining = False
        # A lease of a router that was restarted must not end one of this router's.
        self._mark = os.urandom(4).hex()
        self._numbers = itertools.count()
        self._held: dict[int, Lease] = {}
        self._relay: Relay | None = None
        self._ask = msgspec.json.Decoder(Ask).decode
        self._ask_many = msgspec.json.Decoder(AskMany).decode
        self._report = msgspec.json.Decoder(Report).decode
        self._ended = msgspec.json.Decoder(Ended).decode
        self._ended_many = msgspec.json.Decoder(EndedMany).decode

    def share(self, relay: Relay, name: str) -> None:
        """There are other routers before the pool: their clients may say here what is theirs, and ours there."""
        self._relay, self._mark = relay, name
        relay.take = self._take

    async def decide(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """``POST /v1/decide``: one request or a batch; waits as long as it is queued."""
        try:
            body = await read_body(request, BODY_LIMIT)
            if b'"requests"' in body:
                asks = self._ask_many(body).requests
                many = True
            else:
                asks, many = [self._ask(body)], False
            arrivals = [self._arrival(ask) for ask in asks]
        except Failure as error:
            return self._refuse(error)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InputError) as error:
            return self._bad(error)
        if self.draining:
            return refusal(503, "draining", "the router is shutting down", retry_after_s=1)
        if not many:
            placed = await self.driver.place(arrivals[0])
            if isinstance(placed, Lease) and (request.transport is None or request.transport.is_closing()):
                placed.aborted("cancelled")  # nobody is there to take it
            found = self._chosen(asks[0], placed)
            headers = {"x-equipoise-reason": found.reason} if found.status != 200 else None
            if headers is not None and found.retry_after_s > 0:
                headers["Retry-After"] = str(max(round(found.retry_after_s), 1))
            return json_answer(found, found.status, headers)
        return json_answer({"decisions": await self._place_all(asks, arrivals)})

    async def release(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """``POST /v1/release``: one lease or several."""
        try:
            body = await read_body(request, 16 * BODY_LIMIT)
            ended = self._ended_many(body).leases if b'"leases"' in body else [self._ended(body)]
        except Failure as error:
            return self._refuse(error)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return self._bad(error)
        known = self._end(ended)
        try:
            known += await self._send("release", ended, again=True)
        except PeerError:  # it may be said again: of a second time nothing comes
            return refusal(503, "owner_unreachable", WORDS["owner_unreachable"], retry_after_s=1.0)
        return json_answer(Counted(known=known, unknown=len(ended) - known))

    async def report(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """``POST /v1/report``: progress of leases, loads of ranks."""
        try:
            report = self._report(await read_body(request, 16 * BODY_LIMIT))
            here, there = self._split(report.ranks)
            ranks = [self._rank_report(one) for one in here]
        except Failure as error:
            return self._refuse(error)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InputError) as error:
            return self._bad(error)
        if ranks:
            self.driver.report(ranks)
        for router, rows in there.items():
            await self._try(router, "ranks", rows)
        known = self._progress(report.leases)
        with contextlib.suppress(PeerError):
            known += await self._send("report", report.leases, again=False)
        return json_answer(Counted(known=known, unknown=len(report.leases) - known))

    # -- inside --------------------------------------------------------------------------------------------------

    def _arrival(self, ask: Ask) -> Arrival:
        if ask.context_tokens is None and ask.prompt_bytes is None:
            raise InputError("neither context_tokens nor prompt_bytes is given", fix="give one of them")
        if ask.path not in GENERATING:
            raise InputError(f"path = {ask.path[:80]!r}", fix=f"use one of {', '.join(GENERATING)}")
        context = ask.context_tokens
        if context is None:
            context = self.lengths.estimate(ask.model, prompt_bytes=ask.prompt_bytes or 0)
        return Arrival(
            ask.request_id or f"d{self._mark}{next(self._numbers):x}",
            context,
            ask.budget_tokens,
            ask.session,
            ask.request_class,
        )

    async def _place_all(self, asks: list[Ask], arrivals: list[Arrival]) -> list[Chosen]:
        """All in one round; if the client leaves meanwhile, what was placed is given back."""
        tasks = [asyncio.ensure_future(self.driver.place(arrival)) for arrival in arrivals]
        try:
            placed = await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            for task in tasks:
                if task.done() and not task.cancelled() and isinstance(lease := task.result(), Lease):
                    lease.aborted("cancelled")
            raise
        return [self._chosen(ask, one) for ask, one in zip(asks, placed, strict=True)]

    def _chosen(self, ask: Ask, placed: Lease | Reject) -> Chosen:
        self.tally.decided.add("placed" if isinstance(placed, Lease) else placed.reason)
        if isinstance(placed, Reject):
            return Chosen(
                request_id=placed.request_id,
                reason=placed.reason,
                status=placed.status,
                retry_after_s=placed.retry_after_s,
            )
        target: Target = placed.target
        try:
            pin = target.pin(placed.rank, ask.path)
        except InputError:
            placed.aborted("cancelled")
            return Chosen(request_id=placed.request_id, reason="cannot_pin", status=502)
        # Nobody ends a lease by guessing: not another client's, and none of the proxy's, which have no token.
        number = next(self._numbers)
        placed.token = f"{self._mark}-{number:x}-{os.urandom(6).hex()}"
        if placed.ended is None:
            self._held[number] = placed
            placed.on_abort = lambda reason: self._drop(number)
        return Chosen(
            request_id=placed.request_id,
            lease=placed.token,
            instance=target.name,
            rank=placed.rank,
            url=pin.url,
            headers=dict(pin.headers),
            body=dict(pin.body),
            reason=placed.reason,
        )

    def _find(self, text: str) -> tuple[int, Lease] | None:
        mark, _, rest = text.partition("-")
        key = rest.partition("-")[0]
        if mark != self._mark or not key or len(key) > 16:
            return None
        try:
            number = int(key, 16)
        except ValueError:
            return None
        lease = self._held.get(number)
        return (number, lease) if lease is not None and lease.token == text else None

    def _drop(self, number: int) -> None:
        self._held.pop(number, None)

    def _end(self, ended: Iterable[Ended]) -> int:
        """Give back what is ours of it; how many were known."""
        known = 0
        for one in ended:
            found = self._find(one.lease)
            if found is None:
                continue
            number, lease = found
            self._drop(number)
            known += 1
            if one.prompt_tokens is not None or one.output_tokens is not None:
                lease.usage(one.prompt_tokens, one.output_tokens)
            if one.outcome == "finished":
                lease.finished()
            else:
                lease.aborted("cancelled" if one.outcome == "cancelled" else one.reason)
            self.tally.released.add(one.outcome)
        return known

    def _progress(self, leases: Iterable[Progress]) -> int:
        """Count on what is ours of it; how many were known."""
        known = 0
        for one in leases:
            found = self._find(one.lease)
            if found is not None:
                known += 1
                found[1].tokens(one.tokens)
        return known

    # -- other routers -------------------------------------------------------------------------------------------

    async def _send(self, what: str, rows: Iterable[Ended] | Iterable[Progress], *, again: bool) -> int:
        """Pass on what is of other routers; how many they knew."""
        if self._relay is None:
            return 0
        of: dict[str, list[Ended | Progress]] = {}
        for one in rows:
            mark = one.lease.partition("-")[0]
            if mark != self._mark:
                of.setdefault(mark, []).append(one)
        counts = [
            await self._relay.send(router, what, msgspec.json.encode(there), again=again)
            for router, there in of.items()
        ]
        return sum(counts)

    async def _try(self, router: str, what: str, rows: list[RankLoadReport]) -> None:
        if self._relay is not None:
            with contextlib.suppress(PeerError):  # the next report says it again
                await self._relay.send(router, what, msgspec.json.encode(rows), again=False)

    def _split(
        self, rows: Iterable[RankLoadReport]
    ) -> tuple[list[RankLoadReport], dict[str, list[RankLoadReport]]]:
        """Loads of ranks that are ours to know, and those of other owners."""
        here: list[RankLoadReport] = []
        there: dict[str, list[RankLoadReport]] = {}
        for one in rows:
            owner = ""
            if self._relay is not None and self.driver.index(one.instance) is None:
                owner = self._relay.owner(one.instance)
                if owner and one.rank >= self._relay.width(one.instance):
                    raise self._no_rank(one, self._relay.width(one.instance))
            (there.setdefault(owner, []) if owner else here).append(one)
        return here, there

    def _take(self, what: str, body: bytes) -> int:
        """Another router passes something on."""
        try:
            if what == "release":
                return self._end(msgspec.json.decode(body, type=list[Ended]))
            if what == "report":
                return self._progress(msgspec.json.decode(body, type=list[Progress]))
            rows = msgspec.json.decode(body, type=list[RankLoadReport])
            self.driver.report([self._rank_report(row) for row in rows])
        except (msgspec.MsgspecError, InputError):
            return 0  # of another version, or it has moved on
        return len(rows)

    def _rank_report(self, one: RankLoadReport) -> RankReport:
        i, now_s = self.driver.index(one.instance), self.driver.now_s()
        if i is None:
            raise InputError(f"no instance is called {one.instance[:80]!r}", fix="GET /workers lists them")
        if one.rank >= self.driver.router.instances[i].width:
            raise self._no_rank(one, self.driver.router.instances[i].width)
        return RankReport(
            i,
            one.rank,
            one.running,
            one.waiting,
            one.context_tokens,
            one.kv_usage,
            one.kv_capacity_tokens,
            one.max_batch,
            now_s - one.age_s,
            one.sequence,
            one.seen_dispatches,
        )

    def _no_rank(self, one: RankLoadReport, width: int) -> InputError:
        return InputError(
            f"rank {one.rank} of {one.instance[:80]!r} does not exist", fix=f"its ranks are 0 to {width - 1}"
        )

    def _refuse(self, error: Failure) -> web.Response:
        self.tally.refused.add(error.reason)
        return refusal(error.status, error.reason, error.message, close=True)

    def _bad(self, error: Exception) -> web.Response:
        self.tally.refused.add("bad_body")
        return refusal(400, "bad_body", f"{' '.join(str(error).split())[:300]}")
