"""One request from the moment it is due to its row: placed, pinned, sent, its tokens stamped and counted."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import urlsplit

from equipoise.engines import Pin, TokenCounter
from equipoise.errors import InputError
from equipoise.live.asks import body, head, refusal
from equipoise.live.parts import RequestRow
from equipoise.live.rows import Outcome
from equipoise.live.wire import Connections
from equipoise.router import Arrival, Reject
from equipoise.serve.driver import Driver, Lease
from equipoise.serve.targets import Target

__all__ = ["Prepared", "Sender"]

ERROR_BYTES = 2048
"""Of the body of a refusal that is kept."""
MESSAGE_CHARACTERS = 200
SERVED_BY = re.compile(rb'"(?:decode_)?dp_rank":\s*(\d{1,4})')


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that only waits for its time.

    Parameters
    ----------
    request : int
        Row of the trace; below 0: none of it.
    prompt : bytes
        JSON.
    prompt_tokens, output_tokens : int
    session : int
    """

    request: int
    prompt: bytes
    prompt_tokens: int
    output_tokens: int
    session: int = -1


@dataclass(slots=True)
class _Answer:
    """Takes an answer as it comes; a `wire.Sink`."""

    over_: asyncio.Future[str]
    lease: Lease | None
    status: int = 0
    counter: TokenCounter = field(default_factory=TokenCounter)
    times_s: list[float] = field(default_factory=list)
    last_s: float = 0.0
    served_by: int = -1
    look_for_rank: bool = False
    error: bytearray = field(default_factory=bytearray)

    def head(self, status: int) -> None:
        self.status = status

    def piece(self, data: bytes, at_s: float) -> None:
        if self.status != 200:
            if len(self.error) < ERROR_BYTES:
                self.error += data[:ERROR_BYTES]
            return
        new = self.counter.feed(data)
        if self.look_for_rank and (found := SERVED_BY.search(data)):
            self.served_by, self.look_for_rank = int(found[1]), False
        if self.counter.failed and not self.error:
            self.error += data[:ERROR_BYTES]
        if new > 0:
            self._came(new, at_s)

    def _came(self, new: int, at_s: float) -> None:
        lease = self.lease
        if lease is not None:
            if not self.times_s:
                lease.first_token()
            lease.tokens(new)
        self.times_s.append(at_s)

    def over(self, how: str, at_s: float) -> None:
        if self.status == 200 and (new := self.counter.end()) > 0:
            self._came(new, at_s)
        self.last_s = at_s
        if not self.over_.done():
            self.over_.set_result(how)


class Sender:
    """Sends the requests of one run.

    Parameters
    ----------
    driver : Driver
        Places them; its targets are `Target`.
    connections : Connections
    engine, route, model : str
    timeout_s : float
        One request, from the moment it is due.
    start_s : float
        Beginning of the run on `time.monotonic`.
    label : tuple of (str, int, int)
        Policy, repeat and order of the run, for the rows.
    done : callable
        Takes every row.
    pinned : bool
        False: no rank is named, and the engine chooses.
    key : str, optional
        The engine's key.
    """

    def __init__(
        self,
        driver: Driver,
        connections: Connections,
        *,
        engine: str,
        route: str,
        model: str,
        timeout_s: float,
        start_s: float,
        label: tuple[str, int, int],
        done: Callable[[RequestRow], None],
        pinned: bool = True,
        key: str | None = None,
    ) -> None:
        self._driver, self._connections = driver, connections
        self._engine, self._route, self._model = engine, route, model
        self._timeout_s, self.start_s, self._label = timeout_s, start_s, label
        self._done, self._pinned, self._key = done, pinned, key
        self._turn = 0
        self._mark = f"{label[2]}-"
        self._sent = 0

    async def send(
        self, what: Prepared, intended_s: float, place: tuple[Target, int] | None = None
    ) -> RequestRow:
        """Carry a request to its end.

        Parameters
        ----------
        what : Prepared
        intended_s : float
            When it was due, from the beginning of the run.
        place : tuple of (Target, int), optional
            Instance and rank, instead of asking the router.
        """
        policy, repeat, order = self._label
        row = RequestRow(
            policy=policy, repeat=repeat, order=order, request=what.request, intended_s=round(intended_s, 6)
        )
        left_s = self.start_s + intended_s + self._timeout_s - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                if place is not None:
                    await self._carry(what, row, *place, None)
                else:
                    await self._place(what, row)
        except TimeoutError:
            row.outcome, row.message = Outcome.TIMEOUT, f"no end within {self._timeout_s:g} s"
        except asyncio.CancelledError:
            row.outcome, row.message = Outcome.STOPPED, None
            raise
        finally:
            self._done(row)
        return row

    async def _place(self, what: Prepared, row: RequestRow) -> None:
        if not self._pinned:
            targets: list[Target] = self._driver.targets
            target = targets[self._turn % len(targets)]
            self._turn += 1
            await self._carry(what, row, target, -1, None)
            return
        self._sent += 1
        arrival = Arrival(
            f"{self._mark}{self._sent}",
            what.prompt_tokens,
            what.output_tokens,
            what.session if what.session >= 0 else None,
        )
        placed = await self._driver.place(arrival)
        if isinstance(placed, Reject):
            row.outcome, row.message = Outcome.REJECTED, placed.reason
            return
        with placed:
            await self._carry(what, row, placed.target, placed.rank, placed)
            if placed.ended is None:
                if row.outcome in (Outcome.OK, Outcome.WRONG_LENGTH):
                    placed.finished()
                else:
                    placed.aborted(WHY.get(row.outcome, "error"))

    async def _carry(
        self, what: Prepared, row: RequestRow, target: Target, rank: int, lease: Lease | None
    ) -> None:
        row.instance, row.rank = target.name, rank
        try:
            pin = target.pin(rank, self._route) if rank >= 0 else Pin(target.url)
        except InputError as error:
            row.outcome, row.message = Outcome.PIN_REFUSED, str(error)
            return
        data = body(
            self._route,
            self._model,
            what.prompt,
            what.output_tokens,
            engine=self._engine,
            fields=pin.body,
        )
        data = head(urlsplit(pin.url).netloc, self._route, len(data), pin.headers, self._key) + data
        try:
            connection = await self._connections.take(pin.url)
        except OSError as error:
            row.outcome, row.message = Outcome.UNREACHABLE, _short(str(error))
            return
        answer = _Answer(asyncio.get_running_loop().create_future(), lease)
        answer.look_for_rank = self._engine == "dynamo" and rank < 0
        if lease is not None:
            lease.on_abort = lambda reason: answer.over(reason, time.monotonic())
        how = "reset"
        try:
            row.sent_s = connection.ask(data, answer) - self.start_s
            how = await answer.over_
        finally:
            if how not in ("complete", "unreadable"):
                connection.drop()
            self._write(what, row, answer, how)

    def _write(self, what: Prepared, row: RequestRow, answer: _Answer, how: str) -> None:
        """What came of it, into the row."""
        counter, times = answer.counter, answer.times_s
        if answer.served_by >= 0:
            row.rank = answer.served_by
        if times:
            row.first_token_s = round(times[0] - self.start_s, 6)
            row.itl_ms = [round((b - a) * 1e3, 4) for a, b in pairwise(times)]
        if answer.status == 200:
            row.output_tokens = counter.output_tokens
            row.prompt_tokens = counter.prompt_tokens if counter.prompt_tokens >= 0 else None
        row.sent_s = None if row.sent_s is None else round(row.sent_s, 6)
        text = bytes(answer.error).decode("utf-8", "replace")
        if how == "unreadable":
            row.outcome, row.message = Outcome.UNREADABLE, "the answer is no HTTP"
        elif how != "complete":
            row.outcome, row.message = Outcome.RESET, None if how == "reset" else how
        elif answer.status != 200:
            row.outcome = refusal(self._engine, answer.status, text, pinned=row.rank >= 0 and self._pinned)
            row.message = _short(f"{answer.status} {text}")
        elif counter.failed and not times and 400 <= counter.error_status < 500:  # refused in its stream
            row.outcome = refusal(
                self._engine, counter.error_status, text, pinned=row.rank >= 0 and self._pinned
            )
            row.message = _short(text)
        elif counter.failed:
            # vLLM has begun to answer when it finds that it cannot: a refusal is then an event of the stream.
            said = refusal(self._engine, 400, text, pinned=row.rank >= 0 and self._pinned)
            refused = not times and said in (Outcome.PIN_REFUSED, Outcome.TOO_LONG)
            row.outcome, row.message = said if refused else Outcome.CUT_SHORT, _short(text)
        elif not counter.done and counter.output_tokens < what.output_tokens:
            row.outcome, row.message = (
                Outcome.CUT_SHORT,
                f"{counter.output_tokens} of {what.output_tokens} tokens",
            )
        else:
            row.finished_s = round((times[-1] if times else answer.last_s) - self.start_s, 6)
            wrong = [
                f"{got} {name} tokens, {planned} planned"
                for name, got, planned in (
                    ("prompt", counter.prompt_tokens, what.prompt_tokens),
                    ("output", counter.output_tokens, what.output_tokens),
                )
                if got not in (planned, -1)
            ]
            row.outcome = Outcome.WRONG_LENGTH if wrong else Outcome.OK
            row.message = "; ".join(wrong) or None


WHY: dict[str, str] = {
    Outcome.REFUSED_429: "refused",
    Outcome.TOO_LONG: "refused",
    Outcome.PIN_REFUSED: "refused",
    Outcome.REFUSED: "refused",
    Outcome.UNREACHABLE: "connect_error",
    Outcome.RESET: "reset_midway",
    Outcome.CUT_SHORT: "reset_midway",
    Outcome.UNREADABLE: "bad_answer",
}
"""What the router is told of an outcome."""


def _short(text: str) -> str:
    return " ".join(text.split())[:MESSAGE_CHARACTERS]
