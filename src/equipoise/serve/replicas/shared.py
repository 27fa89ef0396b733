"""`SharedLease`: a lease that may be in the ledger of another router, and may change ledgers while it lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equipoise.router import Dispatch
from equipoise.serve.driver import Driver
from equipoise.serve.lease import Lease
from equipoise.serve.replicas.wire import State

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["SharedLease"]


class SharedLease(Lease):
    """A lease whose bytes pass through this router, or whose ledger it keeps for a peer.

    Attributes
    ----------
    far : bool
        Another router has it in its ledger; this one tells it all.
    gid : str
        Its name among routers, once it has one.
    name : str
        Its instance.
    """

    __slots__ = ("begun", "context_tokens", "count", "far", "gid", "name", "output", "owners", "prompt")

    def __init__(self, driver: Driver, dispatch: Dispatch, target: Any) -> None:
        super().__init__(driver, dispatch, target)
        self.far, self.begun, self.gid, self.name = False, False, "", ""
        self.context_tokens = self.count = 0
        self.prompt = self.output = -1
        self.owners: Owners | None = None

    def first_token(self) -> None:
        """The answer has begun."""
        self.begun = True
        if not self.far:
            super().first_token()
        elif self.ended is None and self.owners is not None:
            self.owners.far.changed(self)

    def tokens(self, n: int) -> None:
        """So many tokens more."""
        if not self.far:
            super().tokens(n)
        elif self.ended is None and self.owners is not None:
            self.count += max(n, 0)
            self.owners.far.changed(self)

    def usage(self, prompt_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """The engine says the exact lengths."""
        if not self.far:
            super().usage(prompt_tokens, output_tokens)
        elif self.ended is None and self.owners is not None:
            if prompt_tokens is not None and prompt_tokens > 0:
                self.prompt = prompt_tokens
            if output_tokens is not None and output_tokens >= 0:
                self.count = max(self.count, output_tokens)
            self.owners.far.changed(self)

    def finished(self) -> bool:
        """The request has ended by itself; False: the lease had ended before."""
        return self._end("finished")

    def aborted(self, reason: str) -> bool:
        """The request has ended before its end; False: the lease had ended before."""
        return self._end(reason)

    def _end(self, how: str) -> bool:
        if not self.far:
            return self._driver.release(self, how)
        if self.ended is not None:
            return False
        self.ended = how
        if self.owners is not None:
            self.owners.far.changed(self)
        return True

    def taken(self, reason: str) -> None:
        """The owner has ended it."""
        if self.ended is None:
            self.ended = reason
            if self.on_abort is not None:
                self.on_abort(reason)

    def state(self) -> State:
        """How far it is, for its owner."""
        return State(
            self.gid,
            self.name,
            self.rank,
            self.context_tokens,
            self.count,
            self.prompt,
            self.ended or "",
            self.begun,
        )
