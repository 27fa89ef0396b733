"""The decision API: where a request should go, for people whose own data plane carries the bytes.

``POST /v1/decide`` takes a rank, ``/v1/report`` tells how far requests have come, ``/v1/release`` gives ranks back. A
lease of which nothing is heard for the lease TTL ends by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from equipoise.engines.facts import GENERATING
from equipoise.errors import InputError
from equipoise.router import Arrival, RankReport, Reject
from equipoise.serve.answers import json_answer, refusal
from equipoise.serve.body import read_body
from equipoise.serve.driver import Driver, Lease
from equipoise.serve.exchange import Failure
from equipoise.serve.lengths import Lengths
from equipoise.serve.tally import Tally
from equipoise.serve.targets import Target

__all__ = ["DecideApi", "schemas"]

Tokens = Annotated[int, Meta(ge=0, le=1 << 40)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
BODY_LIMIT = 1 << 20


class Ask(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One request that wants a rank: its length in tokens, or in bytes of text and the model's name."""

    context_tokens: Annotated[Tokens | None, Meta(description="Prompt length in tokens.")] = None
    prompt_bytes: Annotated[
        Tokens | None,
        Meta(description="Prompt length in bytes of UTF-8, where tokens are not known."),
    ] = None
    model: Annotated[str, Meta(max_length=256, description="For the estimate from bytes.")] = ""
    request_id: Annotated[
        Name | None, Meta(description="Unique among queued and running ones; made up if left out.")
    ] = None
    budget_tokens: Annotated[int, Meta(ge=-1, description="Declared output limit; -1: none.")] = -1
    session: Annotated[Name | None, Meta(description="Its conversation.")] = None
    request_class: Annotated[str, Meta(max_length=64, description="Class of the queue.")] = "default"
    path: Annotated[
        str, Meta(description="Route it will be sent to; how its rank is named may depend on it.")
    ] = "/v1/completions"


class AskMany(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Several, placed together in one round."""

    requests: Annotated[list[Ask], Meta(min_length=1, max_length=1024)]


class Chosen(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a request is to go, or why nowhere."""

    request_id: Annotated[str, Meta(description="As asked, or made up.")]
    lease: Annotated[
        str, Meta(description="For report and release; absent where the request was refused.")
    ] = ""
    instance: Annotated[str, Meta(description="Name of the instance.")] = ""
    rank: Annotated[int, Meta(description="Rank inside the instance.")] = -1
    url: Annotated[str, Meta(description="Base address to send it to.")] = ""
    headers: Annotated[dict[str, str], Meta(description="Headers to set.")] = {}
    body: Annotated[dict[str, int], Meta(description="Fields to set at the top of the JSON body.")] = {}
    reason: Annotated[str, Meta(description="Who chose and on what; of a refusal its code.")] = ""
    status: Annotated[int, Meta(description="Of a refusal: the HTTP status for the client.")] = 200
    retry_after_s: Annotated[
        float, Meta(description="Of a refusal: when to try again; 0: it would not help.")
    ] = 0.0


class Progress(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far a request has come."""

    lease: Annotated[Name, Meta(description="Which.")]
    tokens: Annotated[Tokens, Meta(description="Output tokens since the last report.")] = 0


class RankLoadReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What an engine that is not polled has on a rank."""

    instance: Annotated[Name, Meta(description="Name of the instance.")]
    rank: Annotated[int, Meta(ge=0, description="Rank inside it.")]
    running: Annotated[Tokens, Meta(description="Requests that run there, of whomever.")]
    waiting: Annotated[Tokens, Meta(description="Requests that wait there.")] = 0
    context_tokens: Annotated[Tokens | None, Meta(description="Tokens of their contexts.")] = None
    kv_usage: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Share of the KV cache in use; taken where context_tokens is not said."),
    ] = None
    kv_capacity_tokens: Annotated[
        Annotated[int, Meta(gt=0)] | None, Meta(description="Tokens the rank's KV cache holds.")
    ] = None
    max_batch: Annotated[Annotated[int, Meta(gt=0)] | None, Meta(description="Requests it runs at most.")] = (
        None
    )
    age_s: Annotated[float, Meta(ge=0, le=86_400, description="How old it is, in seconds.")] = 0.0
    sequence: Annotated[
        Tokens | None, Meta(description="Number of the report; a repeated one is no news.")
    ] = None
    seen_dispatches: Annotated[
        Tokens | None,
        Meta(description="Requests of this router the rank had seen by then, since it knows it."),
    ] = None


class Report(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Progress of leases, loads of ranks, or both."""

    leases: Annotated[list[Progress], Meta(max_length=65_536)] = []
    ranks: Annotated[list[RankLoadReport], Meta(max_length=65_536)] = []


class Ended(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request that is over."""

    lease: Annotated[Name, Meta(description="Which.")]
    outcome: Annotated[
        Literal["finished", "cancelled", "failed"],
        Meta(description="failed: through its engine's fault; it counts against the instance."),
    ] = "finished"
    reason: Annotated[str, Meta(max_length=64, description="Of a failure, for the metrics.")] = "failed"
    prompt_tokens: Annotated[Tokens | None, Meta(description="Exactly, where the engine has said it.")] = None
    output_tokens: Annotated[Tokens | None, Meta(description="The same.")] = None


class EndedMany(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Several."""

    leases: Annotated[list[Ended], Meta(min_length=1, max_length=65_536)]


class Counted(msgspec.Struct, kw_only=True):
    """How many of the leases were known; the rest had ended before, or never been."""

    known: int
    unknown: int


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
        self._ask = msgspec.json.Decoder(Ask).decode
        self._ask_many = msgspec.json.Decoder(AskMany).decode
        self._report = msgspec.json.Decoder(Report).decode
        self._ended = msgspec.json.Decoder(Ended).decode
        self._ended_many = msgspec.json.Decoder(EndedMany).decode

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
        known = 0
        for one in ended:
            lease = self._find(one.lease)
            if lease is None:
                continue
            known += 1
            if one.prompt_tokens is not None or one.output_tokens is not None:
                lease.usage(one.prompt_tokens, one.output_tokens)
            if one.outcome == "finished":
                lease.finished()
            else:
                lease.aborted("cancelled" if one.outcome == "cancelled" else one.reason)
            self.tally.released.add(one.outcome)
        return json_answer(Counted(known=known, unknown=len(ended) - known))

    async def report(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """``POST /v1/report``: progress of leases, loads of ranks."""
        try:
            report = self._report(await read_body(request, 16 * BODY_LIMIT))
            now_s = self.driver.now_s()
            ranks = [self._rank_report(one, now_s) for one in report.ranks]
        except Failure as error:
            return self._refuse(error)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InputError) as error:
            return self._bad(error)
        if ranks:
            self.driver.report(ranks)
        known = 0
        for one in report.leases:
            lease = self._find(one.lease)
            if lease is not None:
                known += 1
                lease.tokens(one.tokens)
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
        placed.token = f"{self._mark}-{placed.key:x}-{os.urandom(6).hex()}"
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

    def _find(self, text: str) -> Lease | None:
        mark, _, rest = text.partition("-")
        key = rest.partition("-")[0]
        if mark != self._mark or not key or len(key) > 16:
            return None
        try:
            lease = self.driver.leases.get(int(key, 16))
        except ValueError:
            return None
        return lease if lease is not None and lease.token == text else None

    def _rank_report(self, one: RankLoadReport, now_s: float) -> RankReport:
        i = self.driver.index(one.instance)
        if i is None:
            raise InputError(f"no instance is called {one.instance[:80]!r}", fix="GET /workers lists them")
        if one.rank >= self.driver.router.instances[i].width:
            raise InputError(
                f"rank {one.rank} of {one.instance[:80]!r} does not exist",
                fix=f"its ranks are 0 to {self.driver.router.instances[i].width - 1}",
            )
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

    def _refuse(self, error: Failure) -> web.Response:
        self.tally.refused.add(error.reason)
        return refusal(error.status, error.reason, error.message, close=True)

    def _bad(self, error: Exception) -> web.Response:
        self.tally.refused.add("bad_body")
        return refusal(400, "bad_body", f"{' '.join(str(error).split())[:300]}")


def schemas() -> dict[str, Any]:
    """JSON schemas of what the routes take and give, by name."""
    found, parts = msgspec.json.schema_components(
        [Ask, AskMany, Chosen, Report, Ended, EndedMany, Counted], ref_template="#/$defs/{name}"
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": parts, "anyOf": list(found)}
