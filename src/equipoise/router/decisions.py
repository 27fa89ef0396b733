"""The decision log: what was known, what was chosen, what others would have chosen; and its form as a trace.

A shadow is asked with the very picture the policy was asked with, after the policy's own earlier choices. It is told of
requests that end where they really were, so one that keeps count of its own requests is told of the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.policies import Policy
from equipoise.policies.calling import functions, memories
from equipoise.policies.groups import choose_groups
from equipoise.policies.views import copy_ranks, slice_ranks, take_requests
from equipoise.router.kernel.state import KEY_BITS, SET
from equipoise.types import Ints, Memory, Ranks, Requests

if TYPE_CHECKING:
    from equipoise.router.books import Books
    from equipoise.router.tables import Tables, Told

__all__ = ["Decision", "DecisionLog", "Scribe", "Shadow", "Shadows", "ask"]

MOST_CANDIDATES = 1024
MOST_OPEN = 1 << 18
"""Decisions whose end is awaited."""


class Shadow(msgspec.Struct, frozen=True):
    """What another policy would have chosen.

    Parameters
    ----------
    policy : str
    instance, rank : int
        -1: it would have let the request wait.
    step_price : float
        Price of that instance's next step then, in units of the cost; 0 where it would have waited.
    """

    policy: str
    instance: int
    rank: int
    step_price: float


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


def ask(tables: Tables, size: int) -> None:
    """Let a policy in Python answer the round made up."""
    world = tables.world
    columns: list[Any] = [column[:size] for column in world.asked]
    requests = Requests(*columns)
    answer(
        tables, tables.place, world.params, world.memory_ints, world.memory_floats, world.view, requests,
        world.chosen[:size],
    )  # fmt: skip


def answer(
    tables: Tables,
    place: Callable[..., None],
    params: np.ndarray,
    ints: np.ndarray,
    floats: np.ndarray,
    view: Ranks,
    requests: Requests,
    out: Ints,
) -> None:
    """Call a policy with a round, by groups if groups are chosen first."""
    world = tables.world
    if not world.settings[SET.GROUPS]:
        place(view, requests, world.prices, params, Memory(ints[0], floats[0]), out)
        return
    group_of = np.empty(len(out), np.int64)
    choose_groups(view, requests, world.bounds, int(world.settings[SET.BY_TOKENS]), group_of)
    for g in range(len(world.bounds) - 1):
        members = np.flatnonzero(group_of == g)
        if len(members) == 0:
            continue
        first, last = int(world.bounds[g]), int(world.bounds[g + 1])
        part = np.full(len(members), -1, np.int64)
        inside = slice_ranks(view, first, last)
        place(
            inside, take_requests(requests, members), world.prices, params, Memory(ints[g], floats[g]), part
        )
        named = (part >= 0) & (part < last - first)
        out[members] = np.where(named, part + first, np.where(part >= 0, len(view.batch), part))


class Shadows:
    """Policies asked beside the one that decides.

    Parameters
    ----------
    policies : sequence of Policy
    cost : StepCost
    seed : int
    """

    def __init__(self, policies: Sequence[Policy], cost: StepCost, seed: int) -> None:
        self.policies, self._prices, self._seed = list(policies), cost.prices(), seed
        self._functions = [functions(policy, slow=not policy.compiled) for policy in policies]
        self._memories: list[tuple[np.ndarray, np.ndarray]] = []
        self.errors = 0

    def begin(self, router: Books) -> None:
        """Fresh memories, for the ranks there are now."""
        world = router._tables.world
        widths = [int(w) for w in world.instances["ranks"]]
        if world.settings[SET.GROUPS]:
            sizes = (widths, [1] * len(widths))
        else:
            sizes = ([max(sum(widths), 1)], [max(len(widths), 1)])
        self._memories = [memories(p, self._prices, *sizes, seed=self._seed) for p in self.policies]

    def ask(self, router: Books, size: int) -> list[Ints]:
        """What each would choose for the round made up."""
        tables, world = router._tables, router._tables.world
        found = []
        for policy, (place, _), (ints, floats) in zip(
            self.policies, self._functions, self._memories, strict=True
        ):
            out = np.full(size, -1, np.int64)
            columns: list[Any] = [column[:size] for column in world.asked]
            requests = Requests(*columns)
            try:
                answer(
                    tables, place, policy.param_array(), ints, floats, copy_ranks(world.view), requests, out
                )
            except Exception:
                self.errors += 1
                out[:] = -1
            found.append(out)
        return found

    def finished(self, router: Books, told: Told) -> None:
        """Tell those that learn."""
        if told.rank < 0:
            return
        world, g, first = router._tables.world, 0, 0
        if world.settings[SET.GROUPS]:
            g = int(world.view.instance[told.rank])
            first = int(world.instances["first"][g])
        for policy, (_, finished), (ints, floats) in zip(
            self.policies, self._functions, self._memories, strict=True
        ):
            if policy.spec.finished is not None:
                finished(
                    Memory(ints[g], floats[g]), policy.param_array(), told.request, told.rank - first,
                    told.context_tokens, told.output_tokens,
                )  # fmt: skip


class _Note(msgspec.Struct):
    """A round before it is committed."""

    batch: list[int]
    context_tokens: list[int]
    ages: list[int]
    index_of: dict[int, int]
    shadows: list[Ints]
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
        few = len(world.view.batch) <= MOST_CANDIDATES
        return _Note(
            batch=world.view.batch.tolist() if few else [],
            context_tokens=world.view.context_tokens.tolist() if few else [],
            ages=world.view.report_age_steps.tolist() if few else [],
            index_of={e: j for j, e in enumerate(world.keys[:size].tolist())},
            shadows=self.shadows.ask(self._router, size),
            size=size,
        )

    def after(self, note: _Note, count: int, now_s: float) -> None:
        """Hand over a decision for each dispatch."""
        router = self._router
        world = router._tables.world
        for j in range(count):
            key, where = int(world.placed[j, 0]), int(world.placed[j, 1])
            e, r = key & ((1 << KEY_BITS) - 1), where >> 2
            entry = world.entries[e]
            context = int(entry["context"])
            shadows = []
            for policy, out in zip(self.shadows.policies, note.shadows, strict=True):
                other = int(out[note.index_of[e]])
                known = 0 <= other < len(world.view.batch)
                shadows.append(
                    Shadow(
                        policy=policy.label,
                        instance=router._instance_of[other] if known else -1,
                        rank=router._local[other] if known else -1,
                        step_price=self._price(r, other, context) if known else 0.0,
                    )
                )
            decision = Decision(
                at_s=now_s,
                arrived_s=float(entry["arrived_s"]),
                request_id=router._names[e] or "",
                session=int(entry["session"]),
                context_tokens=context,
                budget_tokens=int(entry["budget"]),
                instance=router._instance_of[r],
                rank=router._local[r],
                reason=router.reason_of(where & 3),
                step_price=self._price(r, r, context),
                queued=note.size,
                batch=note.batch,
                context_tokens_by_rank=note.context_tokens,
                report_age_steps=note.ages,
                shadows=shadows,
            )
            if self.sink is not None:
                self.sink(decision)

    def _price(self, chosen: int, other: int, context: int) -> float:
        """Price of the next step of `other`'s instance, had the request that is on `chosen` gone there."""
        router = self._router
        return router.price_moved(chosen, other, context)

    def finished(self, request_id: str, told: Told, now_s: float) -> None:
        """A request has ended by itself."""
        if self._begun:
            self.shadows.finished(self._router, told)
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
