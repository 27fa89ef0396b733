"""A second try goes to another instance than the one that has just failed."""

from __future__ import annotations

from equipoise.router import Action, Arrival, Reject, Router

__all__ = ["arrived_elsewhere"]


def arrived_elsewhere(router: Router, now_s: float, arrival: Arrival, avoid: int | None) -> list[Action]:
    """A request has come in that must not go to an instance: it is placed at once, or refused.

    Parameters
    ----------
    router : Router
    now_s : float
    arrival : Arrival
    avoid : int, optional
        Position of the instance.

    Returns
    -------
    list of Action
        What the router decides; a refusal with ``no_other_room`` where it would have to wait.
    """
    if avoid is None:
        return list(router.arrived(now_s, arrival))
    view = router.view(now_s)
    own = view.instance == avoid
    drained = [int(rank) for rank in view.rank[own & view.drained]]
    found = list(router.drain(now_s, avoid))
    actions = router.arrived(now_s, arrival)
    found += actions
    if not actions:  # it waits, and must not go there when it is undrained
        found += router.cancelled(now_s, arrival.request_id)
        retry_s = router.settings.retry_after_min_s
        found.append(Reject(arrival.request_id, 503, "no_other_room", retry_s))
    found += router.undrain(now_s, avoid)
    for rank in drained:
        found += router.drain(now_s, avoid, rank)
    return found
