"""The decision log: what was known, what was chosen, what others would have chosen; and its form as a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING

import msgspec

from equipoise.router.kernel.state import INDEX_MASK
from equipoise.router.shadows import Asked, Shadow, Shadows

if TYPE_CHECKING:
    from equipoise.router.books import Books
    from equipoise.router.tables import Told

__all__ = ["Decision", "DecisionLog", "Scribe"]

MOST_CANDIDATES = 1024
MOST_OPEN = 1 << 18
"""Decisions whose end is awaited."""


class Decision(msgspec.Struct, frozen=True):
    """One dispatch.

    Parameters
    ----------
    at_s, arrived_s : float
        When it was decided, and when the request came in.
    request_id : str
    session : int
        -1: none.
    context_tokens, budget_tokens : int
    instance, rank : int
        What was chosen.
    reason : str
        As in the `Dispatch`.
    step_price : float
        Price of the instance's next step with the request on that rank, in units of the cost.
    queued : int
        Requests in the round.
    batch, context_tokens_by_rank, report_age_steps : list of int
        Every rank of the pool as the round began; empty beyond 1,024 ranks.
    shadows : list of Shadow
    """

    at_s: float
    arrived_s: float
    request_id: str
    session: int
    context_tokens: int
    budget_tokens: int
    instance: int
    rank: int
    reason: str
    step_price: float
    queued: int
    batch: list[int]
    context_tokens_by_rank: list[int]
    report_age_steps: list[int]
    shadows: list[Shadow]


class _Note(msgspec.Struct):
    """A round before it is committed."""

    batch: list[int]
    context_tokens: list[int]
    ages: list[int]
    index_of: dict[int, int]
    asked: Asked
    size: int


class Scribe:
    """Writes decisions down.

    Parameters
    ----------
    sink : callable, optional
    shadows : Shadows
    router : Books
    """

    def __init__(self, sink: Callable[[Decision], None] | None, shadows: Shadows, router: Books) -> None:
        self.sink, self.shadows, self._router = sink, shadows, router
        self._begun = False

    def before(self, size: int, now_s: float) -> _Note:
        """Note the picture, and ask the shadows."""
        if not self._begun:
            self.shadows.begin(self._router)
            self._begun = True
        world = self._router._tables.world
        few = self.sink is not None and len(world.view.batch) <= MOST_CANDIDATES
        return _Note(
            batch=world.view.batch.tolist() if few else [],
            context_tokens=world.view.context_tokens.tolist() if few else [],
            ages=world.view.report_age_steps.tolist() if few else [],
            index_of={e: j for j, e in enumerate(world.keys[:size].tolist())},
            asked=self.shadows.ask(self._router, size, now_s),
            size=size,
        )

    def after(self, note: _Note, count: int, now_s: float) -> None:
        """Hand over a decision for each dispatch."""
        router = self._router
        world = router._tables.world
        rows = []
        for j in range(count):
            key, where = int(world.placed[j, 0]), int(world.placed[j, 1])
            e = key & INDEX_MASK
            rows.append((note.index_of[e], key, where >> 2, int(world.entries["context"][e])))
        others = self.shadows.placed(router, note.asked, rows)
        self.shadows.sample(router, note.asked, now_s)
        if self.sink is None:
            return
        price = {i: router.step_price(i) for i in {router._instance_of[r] for _, _, r, _ in rows}}
        for j, (_, key, r, context) in enumerate(rows):
            e = key & INDEX_MASK
            entry, i = world.entries[e], router._instance_of[r]
            self.sink(
                Decision(
                    at_s=now_s,
                    arrived_s=float(entry["arrived_s"]),
                    request_id=router._names[e] or "",
                    session=int(entry["session"]),
                    context_tokens=context,
                    budget_tokens=int(entry["budget"]),
                    instance=i,
                    rank=router._local[r],
                    reason=router.reason_of(int(world.placed[j, 1]) & 3),
                    step_price=price[i],
                    queued=note.size,
                    batch=note.batch,
                    context_tokens_by_rank=note.context_tokens,
                    report_age_steps=note.ages,
                    shadows=others[j],
                )
            )

    def ended(self, request_id: str, told: Told, lease: int, rank: int, *, completed: bool) -> None:
        """A request has ended, by itself or before."""
        if self._begun:
            self.shadows.ended(self._router, told, lease, rank)
        if not completed:
            return
        if self._begun:
            self.shadows.finished(self._router, told, lease)
        done = getattr(self.sink, "finished", None)
        if done is not None:
            done(request_id, told.context_tokens, told.output_tokens)


class DecisionLog:
    """A sink that writes JSON lines; a line is written when its request has ended, so that it has its length.

    `equipoise.traces.read` reads the file as a trace by its keys ``arrival_s``, ``context_tokens``, ``output_tokens``
    and ``session``; the rest is for people.

    Parameters
    ----------
    file : binary file
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._open = file, dict[str, Decision]()
        self._encoder = msgspec.json.Encoder()
        self.dropped = 0
        """Decisions whose request did not end, or was aborted."""

    def __call__(self, decision: Decision) -> None:
        """Take a decision."""
        self._open[decision.request_id] = decision
        if len(self._open) > MOST_OPEN:
            self._open.pop(next(iter(self._open)))
            self.dropped += 1

    def finished(self, request_id: str, context_tokens: int, output_tokens: int) -> None:
        """Write the decision of a request that has ended."""
        decision = self._open.pop(request_id, None)
        if decision is None:
            return
        row = {
            "arrival_s": decision.arrived_s,
            "context_tokens": context_tokens,
            "output_tokens": output_tokens,
            "session": decision.session,
            "decision": decision,
        }
        self._file.write(self._encoder.encode(row) + b"\n")
