"""Health of instances: what ejects one, what lets it back, and how slowly.

Ranks of an instance wait for each other, so one that is dead stalls all: instances are ejected, ranks only drained. An
instance is ejected by failures in a row (*open*); after a while a fixed few requests try it (*half open*); when enough
of them end well it is up again, its ranks capped for a time while they fill (*slow start*). One that is said to be lost
stays so until it is said to be well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.router.reasons import InstanceState
from equipoise.router.settings import Settings

__all__ = ["Health", "InstanceHealth"]

NEVER = float("inf")


@dataclass(slots=True)
class InstanceHealth:
    """One instance."""

    state: InstanceState = InstanceState.UP
    failures: int = 0
    successes: int = 0
    openings: int = 0
    """Times it was ejected without having come up in between."""
    until_s: float = NEVER
    """When its state changes by itself."""
    unheard: set[int] = field(default_factory=set)
    """Ranks whose first report is awaited."""
    trusted_s: float = NEVER
    """When it is trusted without them."""
    reason: str = ""

    @property
    def trusted(self) -> bool:
        """Whether what the router takes to run there is all there is, as far as it can know."""
        return not self.unheard

    @property
    def serves(self) -> bool:
        """Whether requests may go there."""
        return self.state in (InstanceState.UP, InstanceState.SLOW_START, InstanceState.HALF_OPEN)


class Health:
    """All instances; ``changed`` holds those whose tables are to be written anew.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.of: list[InstanceHealth] = []
        self.changed: set[int] = set()

    def new(self, now_s: float, ranks: int) -> InstanceHealth:
        """An instance nothing has been heard of."""
        one = InstanceHealth()
        self.await_reports(one, now_s, ranks)
        return one

    def await_reports(self, one: InstanceHealth, now_s: float, ranks: int) -> None:
        """What runs there is not known until its ranks have reported."""
        if self.settings.reports == "expected" and self.settings.trust_after_s > 0:
            one.unheard, one.trusted_s = set(range(ranks)), now_s + self.settings.trust_after_s

    def heard(self, i: int, rank: int) -> None:
        """A rank has reported."""
        one = self.of[i]
        one.unheard.discard(rank)
        if not one.unheard:
            one.trusted_s = NEVER
            self.changed.add(i)

    def succeeded(self, i: int, now_s: float) -> None:
        """A request has ended well there."""
        one = self.of[i]
        one.failures = 0
        if one.state is InstanceState.HALF_OPEN:
            one.successes += 1
            if one.successes >= self.settings.half_open_successes:
                self._come_up(i, now_s)

    def failed(self, i: int, now_s: float, reason: str) -> None:
        """A request has failed there."""
        one = self.of[i]
        one.failures += 1
        half = one.state is InstanceState.HALF_OPEN
        if half or (
            one.failures >= self.settings.breaker_failures
            and one.state in (InstanceState.UP, InstanceState.SLOW_START)
        ):
            wait_s = min(
                self.settings.breaker_open_s * 2.0 ** min(one.openings, 30), self.settings.breaker_open_max_s
            )
            one.openings += 1
            one.state, one.until_s, one.reason = InstanceState.OPEN, now_s + wait_s, reason
            self.changed.add(i)

    def lost(self, i: int, reason: str) -> None:
        """It is said to be gone."""
        one = self.of[i]
        one.state, one.until_s, one.reason = InstanceState.LOST, NEVER, reason
        self.changed.add(i)

    def well(self, i: int, now_s: float, ranks: int) -> None:
        """It is said to be well: one that was lost starts slowly, one that was ejected is tried."""
        one = self.of[i]
        if one.state is InstanceState.LOST:
            self.await_reports(one, now_s, ranks)
            self._come_up(i, now_s)
        elif one.state is InstanceState.OPEN:
            self._try(i)

    def tick(self, now_s: float) -> None:
        """What time alone changes."""
        for i, one in enumerate(self.of):
            if now_s >= one.trusted_s:
                one.unheard.clear()
                one.trusted_s = NEVER
                self.changed.add(i)
            if now_s < one.until_s:
                continue
            if one.state is InstanceState.OPEN:
                self._try(i)
            elif one.state is InstanceState.SLOW_START:
                one.state, one.until_s = InstanceState.UP, NEVER
                self.changed.add(i)

    def next_s(self) -> float:
        """When `tick` has something to do."""
        return min((min(one.until_s, one.trusted_s) for one in self.of), default=NEVER)

    def closed(self) -> list[bool]:
        """Where nothing may be sent.

        What runs on an instance that has not reported yet is not known, so it waits while others can serve.
        """
        serving = [one.serves for one in self.of]
        if self.settings.panic == "all" and sum(serving) < self.settings.panic_share * len(serving):
            serving = [one.state is not InstanceState.LOST for one in self.of]
        if any(s and one.trusted for s, one in zip(serving, self.of, strict=True)):
            serving = [s and one.trusted for s, one in zip(serving, self.of, strict=True)]
        return [not s for s in serving]

    def _try(self, i: int) -> None:
        one = self.of[i]
        one.state, one.until_s, one.successes = InstanceState.HALF_OPEN, NEVER, 0
        self.changed.add(i)

    def _come_up(self, i: int, now_s: float) -> None:
        one = self.of[i]
        one.failures = one.openings = 0
        one.reason = ""
        slow_s = self.settings.slow_start_s
        one.state = InstanceState.SLOW_START if slow_s > 0 else InstanceState.UP
        one.until_s = now_s + slow_s if slow_s > 0 else NEVER
        self.changed.add(i)
