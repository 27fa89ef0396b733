"""`Engines`: what becomes of instances and ranks, told to the router."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from equipoise.router import InstanceSpec, RankReport
from equipoise.serve.acts import Acts

__all__ = ["Engines"]


class Engines(Acts):
    """The driver's pool."""

    def report(self, reports: Iterable[RankReport]) -> None:
        """What engines say of their ranks."""
        self.act(self.router.report_many(self.now_s(), reports))
        self._alarm.set_soon()

    def instance_lost(self, instance: int, reason: str = "lost") -> None:
        """An instance is gone."""
        self.act(self.router.instance_lost(self.now_s(), instance, reason))
        self._alarm.set_soon()

    def instance_ok(self, instance: int) -> None:
        """It is well again."""
        self.act(self.router.instance_ok(self.now_s(), instance))
        self._alarm.set_soon()

    def rank_lost(self, instance: int, rank: int, reason: str = "lost") -> None:
        """A rank is gone."""
        self.act(self.router.rank_lost(self.now_s(), instance, rank, reason))
        self._alarm.set_soon()

    def drain(self, instance: int, rank: int | None = None, *, undo: bool = False) -> None:
        """Send nothing more to an instance or a rank; with ``undo`` send there again."""
        turn = self.router.undrain if undo else self.router.drain
        self.act(turn(self.now_s(), instance, rank))
        self._alarm.set_soon()

    def set_instances(
        self,
        specs: Sequence[InstanceSpec],
        targets: Sequence[Any] | None = None,
        *,
        warm: Collection[str] = (),
        offer: bool = True,
    ) -> None:
        """These are the instances now: `Router.set_instances`."""
        actions = self.router.set_instances(self.now_s(), specs, warm=warm, offer=offer)
        self.targets = list(targets if targets is not None else self._names())
        self.act(actions)
        self._alarm.set_soon()

    def index(self, name: str) -> int | None:
        """Position of an instance in the router's list."""
        for i, spec in enumerate(self.router.instances):
            if spec.name == name:
                return i
        return None
