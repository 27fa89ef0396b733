"""Which workers there are, as sources say it over time: the difference of what was and what is, sans I/O.

A source that fails says nothing: the last good answer stands, and the failure is told. A worker that is missing from a
good answer leaves at once from a list a person wrote, and after ``missing_for_s`` from one that may be cut short (DNS).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from equipoise.engines.workers import WorkerSpec

__all__ = ["Change", "Members"]


@dataclass(frozen=True, slots=True)
class Change:
    """What an answer changed.

    Parameters
    ----------
    added, removed : tuple of WorkerSpec
        Sorted. A worker whose options changed is in both.
    problem : str
        Why the last answer could not be used; empty: it could.
    """

    added: tuple[WorkerSpec, ...] = ()
    removed: tuple[WorkerSpec, ...] = ()
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


class Members:
    """The workers known now.

    Parameters
    ----------
    missing_for_s : float
        How long a worker may be missing from good answers before it is removed.
    keep_last : bool
        Whether an answer without any worker is taken for a failure of the source, not for the end of all workers.
    """

    def __init__(self, *, missing_for_s: float = 0.0, keep_last: bool = True) -> None:
        self._missing_for_s = missing_for_s
        self._keep_last = keep_last
        self._since: dict[WorkerSpec, float] = {}
        self._known: set[WorkerSpec] = set()
        self.problem = ""
        self.failures = 0

    @property
    def workers(self) -> tuple[WorkerSpec, ...]:
        """Sorted."""
        return tuple(sorted(self._known))

    def answered(self, now_s: float, workers: Iterable[WorkerSpec]) -> Change:
        """A good answer: the whole list as the source sees it."""
        seen = set(workers)
        if not seen and self._known and self._keep_last:
            return self.failed("the source lists no worker; the last list stands")
        self.problem = ""
        added = seen - self._known
        removed = set()
        for worker in self._known - seen:
            since = self._since.setdefault(worker, now_s)
            if now_s - since >= self._missing_for_s:
                removed.add(worker)
        # A worker that came back under other options replaces the old one at once.
        places = {(w.url, w.first_rank, w.worker_id) for w in added}
        removed |= {w for w in self._known - seen if (w.url, w.first_rank, w.worker_id) in places}
        for worker in [*removed, *(seen & self._since.keys())]:
            self._since.pop(worker, None)
        self._known = (self._known | added) - removed
        return Change(tuple(sorted(added)), tuple(sorted(removed)))

    def failed(self, problem: str) -> Change:
        """No usable answer."""
        self.failures += 1
        self.problem = problem
        return Change(problem=problem)
