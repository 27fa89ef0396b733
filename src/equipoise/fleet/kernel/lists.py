"""Lists, a heap and clocks for compiled code, over the records of `state`.

Requests are numbers; a list is its first, its last, and for each request who follows.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.fleet.kernel.state import NOBODY

__all__ = [
    "append",
    "earliest",
    "one_of",
    "pop",
    "push",
    "put_first",
    "replica_of",
    "set_clock",
    "take_first",
]


@jitable
def append(lists, requests, where, request):  # type: ignore[no-untyped-def]
    """Put a request at the end of list number `where`."""
    requests[request].following = NOBODY
    if lists[where].first == NOBODY:
        lists[where].first = request
    else:
        requests[lists[where].last].following = request
    lists[where].last = request


@jitable
def put_first(lists, requests, where, request):  # type: ignore[no-untyped-def]
    """Put a request before all others."""
    requests[request].following = lists[where].first
    if lists[where].first == NOBODY:
        lists[where].last = request
    lists[where].first = request


@jitable
def take_first(lists, requests, where):  # type: ignore[no-untyped-def]
    """Take the first request of a list that is not empty."""
    request = np.int64(lists[where].first)
    lists[where].first = requests[request].following
    if lists[where].first == NOBODY:
        lists[where].last = NOBODY
    requests[request].following = NOBODY
    return request


@jitable
def push(heap, count, time_s, order, entry):  # type: ignore[no-untyped-def]
    """Enter into a binary heap of `count` entries, least time first, then least order."""
    i = count
    while i > 0:
        above = (i - 1) // 2
        top_s = heap[above].time_s
        if top_s < time_s or (top_s == time_s and heap[above].order < order):
            break
        copy_entry(heap, above, i)
        i = above
    heap[i].time_s = time_s
    heap[i].order = order
    heap[i].entry = entry


@jitable
def copy_entry(heap, source, target):  # type: ignore[no-untyped-def]
    """Copy one entry of a heap over another."""
    heap[target].time_s = heap[source].time_s
    heap[target].order = heap[source].order
    heap[target].entry = heap[source].entry


@jitable
def before(heap, one, other):  # type: ignore[no-untyped-def]
    """Whether an entry of a heap comes before another."""
    one_s, other_s = heap[one].time_s, heap[other].time_s
    return one_s < other_s or (one_s == other_s and heap[one].order < heap[other].order)


@jitable
def pop(heap, count):  # type: ignore[no-untyped-def]
    """Take the top entry out of a heap of `count`."""
    top = heap[0].entry
    last = count - 1
    i = 0
    while True:
        below = 2 * i + 1
        if below >= last:
            break
        if below + 1 < last and before(heap, below + 1, below):
            below += 1
        if before(heap, last, below):
            break
        copy_entry(heap, below, i)
        i = below
    copy_entry(heap, last, i)
    return top


@jitable
def set_clock(tree, clock, time):  # type: ignore[no-untyped-def]
    """Set a leaf of a tree of minima."""
    i = len(tree) // 2 + clock
    tree[i] = time
    i //= 2
    while i > 0:
        tree[i] = min(tree[2 * i], tree[2 * i + 1])
        i //= 2


@jitable
def earliest(tree):  # type: ignore[no-untyped-def]
    """Leaf with the least time; the lowest of several."""
    leaves = len(tree) // 2
    i = 1
    while i < leaves:
        i = 2 * i if tree[2 * i] <= tree[2 * i + 1] else 2 * i + 1
    return i - leaves


@jitable
def one_of(column, request):  # type: ignore[no-untyped-def]
    """Entry of a request in a column that may hold one entry for all."""
    return column[request if len(column) > 1 else 0]


@jitable
def replica_of(request, session, replicas):  # type: ignore[no-untyped-def]
    """Router replica that a request comes to: the same for a whole conversation, in turn where there is none."""
    conversation = session[request if len(session) > 1 else 0]
    return (conversation if conversation >= 0 else request) % replicas
