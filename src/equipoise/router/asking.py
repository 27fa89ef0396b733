"""How a policy is asked for a round from Python: as a whole, or group by group where an instance is chosen first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.policies.groups import choose_groups
from equipoise.policies.views import slice_ranks, take_requests
from equipoise.router.kernel.state import SET, World
from equipoise.types import Floats2D, Ints, Ints2D, Memory, Ranks, Requests

if TYPE_CHECKING:
    from equipoise.router.tables import Tables

__all__ = ["answer", "ask", "round_of"]


def ask(tables: Tables, size: int) -> None:
    """Let a policy in Python answer the round made up."""
    world = tables.world
    answer(
        world, tables.place, world.params, (world.memory_ints, world.memory_floats), world.view,
        round_of(world, size), world.chosen[:size],
    )  # fmt: skip


def round_of(world: World, size: int) -> Requests:
    """The requests of the round made up."""
    columns: list[Any] = [column[:size] for column in world.asked]
    return Requests(*columns)


def answer(
    world: World,
    place: Callable[..., None],
    params: np.ndarray,
    memories: tuple[Ints2D, Floats2D],
    view: Ranks,
    requests: Requests,
    out: Ints,
) -> None:
    """Call a policy with a round, by groups if groups are chosen first.

    Parameters
    ----------
    world : World
    place : callable
    params : float64[parameters]
    memories : pair of arrays
        A row a group.
    view : Ranks
    requests : Requests
    out : int64[requests]
        Filled in: ranks of the pool, -1 for requests that are to wait.
    """
    ints, floats = memories
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
