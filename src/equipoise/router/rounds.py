"""`Rounds`: the queue is offered to the policy, and what it places is dispatched."""

from __future__ import annotations

import logging

from equipoise.router.asking import ask
from equipoise.router.books import REASONS
from equipoise.router.events import Action, Dispatch
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import COUNT, INDEX_MASK
from equipoise.router.sessions import Session
from equipoise.router.standing import Standing

__all__ = ["Rounds"]

_log = logging.getLogger(__name__)


class Rounds(Standing):
    """The router's placing."""

    def _offer(self, now_s: float) -> list[Action]:
        """Offer the queue again if that can change anything now."""
        if not (
            self.settings.place_on_release and self._count_of[COUNT.WAITING] and self._count_of[COUNT.DIRTY]
        ):
            return []
        if now_s < self._round_s + self.settings.round_every_s:
            return []
        return self._place(now_s)

    def _place(self, now_s: float) -> list[Action]:
        """Rounds, until the queue is empty or requests are left in it."""
        actions: list[Action] = []
        if now_s >= self._rung_until_s:
            self._update_rung(now_s)
        if not self._serving:
            return actions
        counts, placed, names, talks = self._count_of, self._placed, self._names, self._talks
        self._round_s = now_s
        while counts[COUNT.WAITING]:
            if self._in_python:
                n = self._decide_in_python(now_s)
            else:
                before = counts[COUNT.BREACHES]
                try:
                    n = calls.decide(self._at, self._place_at, now_s)
                except Exception as error:
                    n = self._place_without(now_s, error)
                if counts[COUNT.BREACHES] != before:
                    actions += self._dispatches(n, placed, names, talks)
                    n = self._place_without(now_s, None)
            actions += self._dispatches(n, placed, names, talks)
            if n == 0 or counts[COUNT.HELD_BACK]:
                break
        return actions

    def _dispatches(
        self, n: int, placed: memoryview[int], names: list[str | None], talks: list[Session | None]
    ) -> list[Dispatch]:
        reasons = REASONS[self._rung]
        found = []
        for j in range(n):
            key, where = placed[2 * j], placed[2 * j + 1]
            r, index = where >> 2, key & INDEX_MASK
            talk = talks[index]
            if talk is not None:
                talk.rank = r
            found.append(
                Dispatch(
                    names[index] or "",
                    key,
                    self._instance_of[r],
                    self._local[r],
                    reasons[where & 3],
                )
            )
        return found

    def _place_without(self, now_s: float, error: Exception | None) -> int:
        """The policy failed, or chose what it may not: what it has left is placed in turn."""
        self.policy_errors += 1
        if self.policy_errors in (1, 10, 100) or self.policy_errors % 1000 == 0:
            what = "chose a rank it may not" if error is None else f"failed: {error!r}"
            _log.error("policy %s %s (%d times)", self.policy.name, what, self.policy_errors)
        calls.show_all(self._at, now_s)
        return int(calls.decide(self._at, 0, now_s))

    def _decide_in_python(self, now_s: float) -> int:
        """A round whose policy Python calls, or which is written down."""
        size = calls.gather_round(self._at, now_s)
        if size == 0:
            return 0
        in_turn = self._rung == 2
        note = self._scribe.before(size, now_s) if self._scribe is not None else None
        before = self._count_of[COUNT.BREACHES]
        n = 0
        if not in_turn:
            try:
                ask(self._tables, size)
            except Exception as error:
                return self._place_without(now_s, error)
        n = calls.commit_round(self._at, int(in_turn), now_s)
        if note is not None and self._scribe is not None:
            self._scribe.after(note, n, now_s)
        if self._count_of[COUNT.BREACHES] != before and n == 0:
            n = self._place_without(now_s, None)
        return int(n)
