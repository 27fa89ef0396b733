"""`Choice`: which instance a request is asked for at, on what owners have last said of their load.

There is no barrier between instances, so coarse and old data do: the exact ledger is the owner's.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING

from equipoise.serve.replicas.wire import Load, decode

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Choice"]

NEVER = float("-inf")


class Choice:
    """Loads of the instances that others own, as far as they are known.

    Parameters
    ----------
    owners : Owners
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._random = random.Random(owners.name)
        self._loads: dict[str, tuple[float, Load]] = {}
        self._sent: dict[str, int] = {}
        self._placing: Counter[str] = Counter()

    def instance(self, avoid: str | None) -> str | None:
        """The one with the least load a rank; none: none has an owner."""
        owners, best, chosen = self._owners, None, None
        own = owners.loads() if owners.ownership.mine else {}
        for name in owners.specs:
            load, sent, suspect = own.get(name), self._placing[name], False
            if load is None:
                owner = owners.ownership.others.get(name)
                if owner is None:
                    continue
                peer = owners.peers.get(owner.router)
                suspect = not owner.url or (peer is not None and peer.suspect)
                load, sent = self.load(name), self._sent.get(name, 0)
            key = (
                suspect or name == avoid,
                not load.open,
                (load.requests + sent) / load.ranks,
                self._random.random(),
            )
            if best is None or key < best:
                best, chosen = key, name
        return chosen

    def load(self, name: str) -> Load:
        """What is known of an instance that somebody else owns."""
        owner = self._owners.ownership.others.get(name)
        value, value_s = (owner.value, owner.value_s) if owner is not None else (b"", NEVER)
        known_s, load = self._loads.get(name, (NEVER, None))
        if load is None or value_s > known_s:
            load = Load(ranks=self._owners.specs[name].width)
            if value:
                with contextlib.suppress(ValueError):  # of another version
                    load = decode(value, Load)
            self._loads[name] = (value_s, load)
            self._sent[name] = 0
        return load

    def placing(self, name: str, n: int) -> None:
        """So many requests more are on their way into an own instance: those of one turn see each other."""
        self._placing[name] += n

    def sent(self, name: str) -> None:
        """A request has been sent there."""
        self._sent[name] = self._sent.get(name, 0) + 1

    def heard(self, loads: dict[str, Load], now_s: float) -> None:
        """An owner says what it has."""
        for name, load in loads.items():
            self._loads[name] = (now_s, load)
            self._sent[name] = 0

    def forget(self, name: str) -> None:
        """An instance has another owner."""
        self._loads.pop(name, None)
        self._sent.pop(name, None)
