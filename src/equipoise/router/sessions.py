"""Conversations: a number for each, and the rank each was on last; bounded, the longest silent forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["Session", "Sessions"]


MOST_NUMBER = 1 << 62


class Session:
    """One conversation."""

    __slots__ = ("number", "rank")

    def __init__(self, number: int) -> None:
        self.number = number
        self.rank = -1


class Sessions:
    """Those of late.

    Parameters
    ----------
    most : int
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str | int, Session] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: str | int) -> Session:
        """The conversation of that name, a new one if it is not known."""
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            return found
        number = key if isinstance(key, int) and abs(key) < MOST_NUMBER else self._next
        self._next += 1
        found = self._known[key] = Session(number)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return found

    def move(self, new_rank: Sequence[int]) -> None:
        """Ranks have other numbers; -1: it is gone."""
        for session in self._known.values():
            if session.rank >= 0:
                session.rank = new_rank[session.rank]
