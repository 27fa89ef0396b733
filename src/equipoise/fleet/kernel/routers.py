"""What routers are shown and what they count, as arrays; `pictures` says how the numbers come about."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.fleet.kernel.layout import EXACT, EXTRAPOLATED, FleetSettings
from equipoise.replay.layout import PoolLayout
from equipoise.types import Floats2D, Ints, Ints2D, Ints3D

__all__ = [
    "AGE",
    "BATCH",
    "CONTEXT",
    "FREE_SLOTS",
    "FREE_TOKENS",
    "REQUESTS",
    "ROOM",
    "STALE",
    "TOKENS",
    "UNSEEN",
    "Pictures",
    "new_pictures",
]

MOST_ON_THEIR_WAY = 64
"""Reports of an instance on their way, where the delay is in seconds; one more takes the place of the latest."""


BATCH, CONTEXT, FREE_TOKENS, FREE_SLOTS, UNSEEN, AGE = 0, 1, 2, 3, 4, 5
"""Of what policies are shown."""

REPORTED = np.dtype(
    [
        ("told_step", np.int64),  # the step after which the last delivered report was made
        ("ring_first", np.int64),
        ("ring_count", np.int64),
        ("next_s", np.float64),  # when the next report is due, where they come by the clock
        ("pace_s", np.float64),  # seconds a token, from requests that finished; 0: none has
    ]
)
"""What is known about the reports of an instance."""
ON_ITS_WAY = np.dtype([("step", np.int64), ("sent_s", np.float64)])
SENT = np.dtype([("tokens", np.int64), ("us", np.int64)])
"""A request's size when it was sent, and when, in microseconds (``extrapolated``)."""


REQUESTS, TOKENS, ROOM, STALE = 0, 1, 2, 3
"""Of an instance as a view shows it: requests and context of all its ranks, the most room on one; 1: out of date."""


class Pictures(NamedTuple):
    """Views (one a replica, and last the exact one where it is needed), counts, and reports on their way."""

    shown: Ints3D
    """int64[6, views, ranks], see `BATCH`."""
    saturated: Ints3D
    """int64[views, ranks, saturations]"""
    totals: Ints3D
    """int64[4, views, instances], see `REQUESTS`; added up when groups are chosen between."""
    instance: Ints
    rank: Ints
    starts_in_s: Floats2D
    """float64[2, ranks]: zeros, for pictures; and as it is, for the exact view."""
    own: Ints3D
    """int64[replicas, channels, ranks]: what a replica counts itself."""
    base: Ints3D
    """The same, as it was "then"."""
    told: Ints2D
    """int64[channels, ranks]: the last delivered report."""
    reported: Annotated[NDArray[np.void], REPORTED]
    """[instances]"""
    live: Ints3D
    """int64[replicas, channels, ranks]: live requests of a replica, as they were when sent; last, when they were sent,
    in microseconds, added up (``extrapolated``)."""
    sent: Annotated[NDArray[np.void], SENT]
    """[requests]"""
    ring: Ints3D
    """int64[instances * places, channels * (1 + replicas), width]: reports on their way."""
    on_its_way: Annotated[NDArray[np.void], ON_ITS_WAY]
    """[instances * places]"""


def new_pictures(
    pool: PoolLayout, settings: FleetSettings, saturations: int, requests: int, *, by_instance: bool
) -> Pictures:
    """Views of an empty pool; nothing known of it, which is all there is to know."""
    instances, width = pool.instances, pool.ranks_per_instance
    ranks, channels = instances * width, 4 + saturations
    told = settings.knows != EXACT
    replicas = settings.replicas if told else 0
    views = replicas + 1 if by_instance or not told else replicas
    guesses = settings.knows == EXTRAPOLATED
    places = settings.report_delay_steps // settings.report_period_steps + 3
    if settings.report_delay_s > 0:
        places = max(places, MOST_ON_THEIR_WAY)
    if not told:
        places = 0
    return Pictures(
        shown=np.zeros((6, views, ranks), np.int64),
        saturated=np.zeros((views, ranks, saturations), np.int64),
        totals=np.ones((4, views, instances), np.int64),
        instance=np.arange(ranks) // width,
        rank=np.arange(ranks),
        starts_in_s=np.zeros((2, ranks)),
        own=np.zeros((replicas, channels, ranks), np.int64),
        base=np.zeros((replicas, channels, ranks), np.int64),
        told=np.zeros((channels, ranks), np.int64),
        reported=np.zeros(instances, REPORTED),
        live=np.zeros((replicas if guesses else 0, channels, ranks), np.int64),
        sent=np.zeros(requests if guesses else 0, SENT),
        ring=np.zeros((instances * places, channels * (1 + replicas), width), np.int64),
        on_its_way=np.zeros(instances * places, ON_ITS_WAY),
    )
