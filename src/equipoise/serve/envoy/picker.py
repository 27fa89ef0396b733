"""`Picker`: the life of a request that Envoy carries, from its headers to the end of its stream; no gRPC in it.

::

    begin(headers) -> Held | Refusal      the route is one that generates
    place(held, body) -> Held | Refusal   the router has chosen; `held.answer` says how it is sent there
    answered(held, status, by_upstream)   the answer's headers have come by
    gone(held)                            the stream is closed: the lease ends, now or as soon as its log entry is there
    logged(request_id, end)               Envoy's access log says how it ended

The tokens of an answer are not seen: the router runs with ``counts="extrapolated"``, at the pace of requests that have
finished, whose lengths come from the log (`equipoise.serve.envoy.lengths`).
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from equipoise.engines.body import set_fields
from equipoise.engines.facts import GENERATING, RequestFacts, request_facts
from equipoise.engines.headers import PIN_FIELDS
from equipoise.errors import InputError
from equipoise.router import Arrival
from equipoise.serve.driver import Driver, Lease
from equipoise.serve.envoy.held import End, Held, Refusal
from equipoise.serve.envoy.lengths import AnswerLengths
from equipoise.serve.envoy.ways import Encode, Ways
from equipoise.serve.lengths import context_of

__all__ = ["Picker"]

LOG_WAIT_S = 0.1
"""A log entry comes about 1 ms after its stream is closed; a lease does not wait longer than this for it."""
PIN_WORDS = tuple(name.encode() for name in PIN_FIELDS)
ESCAPED_LETTER = re.compile(rb"\\u00[567]")
"""``\\u0072`` is an r: by it a key can be written so that its name is not seen."""

INVALID_BODY, NO_BODY, NO_ROUTE = "invalid_body", "no_body", "no_route"


class Picker:
    """Answers where requests are to go.

    Parameters
    ----------
    driver : Driver
        Its targets are `equipoise.serve.envoy.held.Sender`.
    class_header : str
        Names the class of a request (``Settings.classes``).
    tally : equipoise.serve.tally.Tally, optional
        What the metrics are read from.
    name : str
        Of one of several pickers, ``2/5``.
    worker_key : callable, optional
        Key of an instance by its name: engines get it instead of the client's.
    api_key : str, optional
        What clients have to show.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        lengths: AnswerLengths | None = None,
        class_header: str = "x-request-class",
        tally: Any = None,
        name: str = "",
        worker_key: Callable[[str], str | None] | None = None,
        api_key: str | None = None,
    ) -> None:
        self.driver = driver
        self.lengths = lengths or AnswerLengths()
        self.name = name
        self._expected = f"Bearer {api_key}".encode() if api_key is not None else None
        self._tally = tally
        self.draining = False
        """Whether new requests are turned away."""
        self.counts: Counter[str] = Counter()
        """How requests ended or were refused, by reason; and `late_log`, leases that ended without a log entry."""
        self.logging = 0
        """Envoys whose access log is connected."""
        self._class_header = class_header
        self._ways = Ways(name, worker_key or (lambda name: None))
        self._number = itertools.count()
        self._open: dict[str, deque[Held]] = {}
        self._live: set[Held] = set()
        self._ending: dict[Held, asyncio.TimerHandle] = {}
        self._early: dict[str, deque[End]] = {}
        self._loop = asyncio.get_running_loop()

    def encode_with(self, encode: Encode) -> None:
        """Have ``Way.encoded`` made, once a rank and route."""
        self._ways.encode = encode

    @property
    def open_requests(self) -> int:
        """Requests that hold a lease, or wait for its end to be explained."""
        return sum(len(held) for held in self._open.values())

    # -- before the engine ---------------------------------------------------------------------------------------

    def begin(self, headers: Mapping[str, str], *, bodyless: bool = False) -> Held | Refusal:
        """A request has come; names of headers are lower case, Envoy's own among them (``:path``)."""
        if self._expected is not None:
            given = headers.get("authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, self._expected):
                return self._refuse(401, "key", "a key is needed: Authorization: Bearer ...")
        path = headers.get(":path", "").partition("?")[0].rstrip("/")
        if path not in GENERATING:
            return self._refuse(404, NO_ROUTE, f"no engine is asked for {path[:80]!r} here")
        if bodyless:
            return self._refuse(400, NO_BODY, "a request that generates needs a JSON body")
        if self.draining:
            return self._refuse(503, "draining", "this picker is going away", 1.0)
        if self._tally is not None:
            self._tally.requests.add(path)
            self._tally.streams += 1
        return Held(path, headers, self.driver.now_s())

    async def place(self, held: Held, body: bytes) -> Held | Refusal:
        """Its whole body is there: have it placed; waits as long as the router queues it."""
        try:
            facts = request_facts(held.path, body, held.headers)
        except InputError as error:
            return self._refuse(400, INVALID_BODY, str(error))
        held.facts = facts
        placed = await self.driver.place(
            Arrival(
                f"ext-proc-{next(self._number)}",
                context_of(self.lengths.prompts, facts, held.path, body),
                facts.budget_tokens,
                facts.session,
                held.headers.get(self._class_header, "default"),
                facts.body_bytes,
            )
        )
        if not isinstance(placed, Lease):
            message = f"the router cannot place this request now ({placed.reason})"
            return self._refuse(placed.status, placed.reason, message, placed.retry_after_s)
        held.lease = placed
        self._live.add(held)
        if self._tally is not None:
            self._tally.queue_s.add(self.driver.now_s() - held.came_s)
        try:
            way = held.way = self._ways.of(placed, held.path)
            if way.pin.body or _may_pin(body):
                held.body = set_fields(body, way.pin.body)
        except InputError as error:
            placed.aborted("refused")
            self._live.discard(held)
            held.lease = None
            return self._refuse(500, "no_way", str(error))
        if self.logging and held.log_id:
            self._open.setdefault(held.log_id, deque()).append(held)
        return held

    def _refuse(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> Refusal:
        self.counts[reason] += 1
        if self._tally is not None:
            self._tally.refused.add(reason)
            self._tally.answers.add(str(status))
        return Refusal(status, reason, message, retry_after_s)

    # -- behind it -----------------------------------------------------------------------------------------------

    def answered(self, held: Held, status: int, by_upstream: bool) -> None:
        """The headers of the answer; not ``by_upstream``: Envoy made it, because it had none."""
        held.status, held.by_upstream = status, by_upstream
        lease = held.lease
        began = lease is not None and status < 400
        if lease is not None:
            if began:
                lease.first_token()
            if by_upstream:
                lease.target.heard_s = self.driver.now_s()
        if self._tally is not None:
            self._tally.answers.add(str(status))
            if by_upstream:
                self._tally.upstream_status.add(str(status))
            if began:
                self._tally.first_byte_s.add(self.driver.now_s() - held.came_s)

    def gone(self, held: Held) -> None:
        """Its stream is closed, whatever the cause."""
        if self._tally is not None:
            self._tally.streams -= 1
        if held.lease is None:
            return
        early = self._early.get(held.log_id)
        if early:
            end = early.popleft()
            if not early:
                del self._early[held.log_id]
            self._finish(held, end)
        elif self.logging and held.log_id in self._open:
            self._ending[held] = self._loop.call_later(LOG_WAIT_S, self._unexplained, held)
        else:
            self._finish(held, End(held.guess()))

    def logged(self, request_id: str, end: End) -> None:
        """Envoy's access log tells of a request; of ones that were never placed too, which say nothing."""
        waiting = self._open.get(request_id)
        if not waiting:
            return
        for held in waiting:  # ids are the client's to choose: two of the same are told apart by who is gone
            timer = self._ending.pop(held, None)
            if timer is not None:
                timer.cancel()
                self._finish(held, end)
                return
        early = self._early.setdefault(request_id, deque())
        if len(early) < len(waiting):
            early.append(end)

    def _unexplained(self, held: Held) -> None:
        self._ending.pop(held, None)
        self.counts["late_log"] += 1
        self._finish(held, End(held.guess()))

    def _finish(self, held: Held, end: End) -> None:
        """End the lease, and learn what there is to learn."""
        self._live.discard(held)
        waiting = self._open.get(held.log_id)
        if waiting is not None:
            if held in waiting:
                waiting.remove(held)
            if not waiting:
                del self._open[held.log_id]
                self._early.pop(held.log_id, None)
        lease, facts = held.lease, held.facts
        if lease is None or facts is None:
            return
        how = end.how
        if how == "finished" and not (held.by_upstream and held.status < 400):
            how = held.guess()
        self.counts[how] += 1
        if how != "finished":
            if self._tally is not None:
                self._tally.failed.add(how)
            lease.aborted(how)
            return
        output = self._output(facts, end)
        if self._tally is not None:
            self._tally.tokens += max(output, 0)
        if output >= 0 or end.prompt_tokens > 0:
            lease.usage(end.prompt_tokens if end.prompt_tokens > 0 else None, output if output >= 0 else None)
        lease.finished()

    def _output(self, facts: RequestFacts, end: End) -> int:
        """Tokens of an answer that came to its end; -1: nothing is known of it."""
        lengths, model = self.lengths, facts.model
        if end.prompt_tokens > 0:
            lengths.prompts.learn(model, prompt_bytes=facts.prompt_bytes, prompt_tokens=end.prompt_tokens)
        exact = end.output_tokens
        if exact < 0 and facts.ignore_eos and facts.budget_tokens > 0:
            exact = facts.budget_tokens * facts.sequences
        if exact >= 0:
            lengths.learn(model, stream=facts.stream, answer_bytes=end.answer_bytes, tokens=exact)
            return exact
        if end.answer_bytes <= 0:
            return -1
        tokens = lengths.estimate(model, stream=facts.stream, answer_bytes=end.answer_bytes)
        return min(tokens, facts.budget_tokens * facts.sequences) if facts.budget_tokens > 0 else tokens

    # -- time ----------------------------------------------------------------------------------------------------

    def sign_of_life(self) -> None:
        """Every open stream is a request that lives: its lease does not expire."""
        for held in self._live:
            if held.lease is not None:
                held.lease.first_token()

    def close(self) -> None:
        """End what waits for an explanation."""
        for held, timer in list(self._ending.items()):
            timer.cancel()
            self._unexplained(held)


def _may_pin(body: bytes) -> bool:
    """Whether a body may name a rank, so that its keys have to be looked at one by one."""
    return any(word in body for word in PIN_WORDS) or ESCAPED_LETTER.search(body) is not None
