"""Which router should own which instance: evenly, with as few moves as that takes, and the same answer everywhere.

No instance moves while the numbers owned differ by one at most; what is free, or too much, goes to the router with the
highest rendezvous score (the hash of the pair) among those that have too little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b

__all__ = ["plan"]


def score(instance: str, router: str) -> bytes:
    """The rendezvous score of a pair."""
    return blake2b(f"{instance}\n{router}".encode(), digest_size=8).digest()


def plan(instances: Collection[str], owners: Mapping[str, str], routers: Collection[str]) -> dict[str, str]:
    """Give every instance an owner.

    Parameters
    ----------
    instances : collection of str
    owners : mapping of str to str
        Who owns what now; what is free is not in it.
    routers : collection of str
        Those that live.

    Returns
    -------
    dict of str to str
        Owner of each instance; empty if no router lives.
    """
    if not routers:
        return {}
    owned: dict[str, list[str]] = {router: [] for router in routers}
    for instance in sorted(instances):
        owner = owners.get(instance)
        if owner in owned:
            owned[owner].append(instance)
    low, more = divmod(len(set(instances)), len(owned))
    # those that have most may keep one more: that moves least
    ranked = sorted(owned, key=lambda router: (-len(owned[router]), router))
    quota = {router: low + (k < more) for k, router in enumerate(ranked)}
    found: dict[str, str] = {}
    for router, names in owned.items():
        best = sorted(names, key=lambda name: score(name, router), reverse=True)
        for name in best[: quota[router]]:
            found[name] = router
        quota[router] -= min(len(names), quota[router])
    for name in sorted(set(instances) - set(found)):
        router = max((r for r in quota if quota[r] > 0), key=lambda r: (score(name, r), r))
        quota[router] -= 1
        found[name] = router
    return found
