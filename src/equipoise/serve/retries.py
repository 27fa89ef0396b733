"""A budget of second tries: a share of the traffic, so that a pool that fails is not asked twice as much."""

from __future__ import annotations

__all__ = ["RetryBudget"]


class RetryBudget:
    """Tries that may be spent.

    Parameters
    ----------
    share : float
        Second tries a request, on average.
    burst : float
        Most that can be saved up; so many there are at first.
    """

    __slots__ = ("_burst", "_saved", "_share")

    def __init__(self, share: float, burst: float) -> None:
        self._share, self._burst, self._saved = share, burst, burst

    def deposit(self) -> None:
        """A request has come."""
        self._saved = min(self._saved + self._share, self._burst)

    def withdraw(self) -> bool:
        """Take one, if there is one."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
