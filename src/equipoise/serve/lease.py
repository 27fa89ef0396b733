"""`Lease`: a place on a rank, to be given back exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from equipoise.router import Arrival, Dispatch, Reject

if TYPE_CHECKING:
    from equipoise.serve.driver import Driver

__all__ = ["Lease", "Placer"]


class Lease:
    """A place on a rank, to be given back exactly once; as a context manager it is given back whatever happens.

    Leaving the block without having said how the request ended counts as ``client_gone`` if the task was cancelled, as
    ``error`` otherwise.

    Attributes
    ----------
    request_id : str
    key : int
        What the router knows it by.
    instance, rank : int
        Position of the instance when it was chosen, and the rank inside it.
    reason : str
        Who chose and on what.
    target : object
        What the driver was given for that instance; it stays the same when the list of instances changes.
    ended : str or None
        How it ended: ``finished``, or the reason of its abort.
    on_abort : callable, optional
        Called with the reason when the router takes the lease away: the request is to be stopped.
    token : str
        What an outside holder proves itself by; empty: it has none.
    """

    __slots__ = (
        "_driver",
        "ended",
        "instance",
        "key",
        "on_abort",
        "rank",
        "reason",
        "request_id",
        "target",
        "token",
    )

    def __init__(self, driver: Driver, dispatch: Dispatch, target: Any) -> None:
        self._driver = driver
        self.request_id, self.key = dispatch.request_id, dispatch.lease
        self.instance, self.rank, self.reason = dispatch.instance, dispatch.rank, dispatch.reason
        self.target = target
        self.ended: str | None = None
        self.on_abort: Callable[[str], None] | None = None
        self.token = ""

    def first_token(self) -> None:
        """The answer has begun."""
        if self.ended is None:
            driver = self._driver
            driver.act(driver.router.first_token(driver.now_s(), self.key))

    def tokens(self, n: int) -> None:
        """So many tokens more."""
        if self.ended is None:
            driver = self._driver
            actions = driver.router.tokens(driver.now_s(), self.key, n)
            if actions:
                driver.act(actions)

    def usage(self, prompt_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """The engine says the exact lengths."""
        if self.ended is None:
            driver = self._driver
            driver.act(
                driver.router.usage(
                    driver.now_s(), self.key, prompt_tokens=prompt_tokens, output_tokens=output_tokens
                )
            )

    def finished(self) -> bool:
        """The request has ended by itself; False: the lease had ended before."""
        return self._driver.release(self, "finished")

    def aborted(self, reason: str) -> bool:
        """The request has ended before its end; False: the lease had ended before."""
        return self._driver.release(self, reason)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.ended is None:
            gone = kind is not None and issubclass(kind, asyncio.CancelledError)
            self.aborted("client_gone" if gone else "error")


class Placer(Protocol):
    """Places requests in a driver's stead: with the help of other routers."""

    name: str
    """Of this router among them."""

    async def place(self, arrival: Arrival, *, avoid: str | None = None) -> Lease | Reject:
        """As `Driver.place`."""

    def reach(self) -> list[Any]:
        """Targets of others to which requests can be sent."""

    def info(self) -> dict[str, Any]:
        """What ``GET /server_info`` tells of them."""
