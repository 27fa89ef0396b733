"""The ledger: what happens to one request, from its place in the queue to its release.

Every function takes a key and does nothing but count where the entry is no more: a release that comes twice, or an
event that comes late, changes nothing.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.router.kernel.picture import TOKENS_APART_S, keep, refresh, refresh_instance
from equipoise.router.kernel.state import (
    COUNT,
    FREE,
    INDEX_MASK,
    KEY_BITS,
    LIVE,
    NOBODY,
    QUEUED,
    SET,
    counts_in,
    entries_in,
    instances_in,
    kinds_in,
    memory_floats_in,
    memory_ints_in,
    params_in,
    prices_in,
    ranks_in,
    saturated_in,
    settings_in,
    view_in,
)
from equipoise.types import Memory

LIMITED = 1 << 39
"""Fewer probes left than this: an instance is being tried."""

__all__ = ["add_tokens", "dispatch", "enqueue", "find", "key_of", "release", "set_lengths", "step", "unqueue"]


@jitable
def key_of(world, e):  # type: ignore[no-untyped-def]
    """The key of an entry."""
    return (entries_in(world)[e].generation << KEY_BITS) | e


@jitable
def find(world, key, state):  # type: ignore[no-untyped-def]
    """The entry a key stands for, if it is in that state; NOBODY (and counted) if not."""
    entries = entries_in(world)
    e = key & INDEX_MASK
    if key < 0 or e >= len(entries) or entries[e].generation != key >> KEY_BITS or entries[e].state != state:
        counts_in(world)[COUNT.STALE_KEYS] += 1
        return NOBODY
    return e


@jitable
def enqueue(world, now, context, budget, session, kind, size_bytes, preferred, arrived_s):  # type: ignore[no-untyped-def]
    """Put a request at the end of its class's queue; its key, or NOBODY where the table is full."""
    entries, counts, kinds = entries_in(world), counts_in(world), kinds_in(world)
    e = counts[COUNT.FREE_FIRST]
    if e == NOBODY:
        return NOBODY
    counts[COUNT.FREE_FIRST] = entries[e].next
    entry = entries[e]
    entry.state, entry.kind = QUEUED, kind
    entry.rank = entry.told_rank = entry.offered = NOBODY
    entry.context, entry.tokens, entry.budget, entry.session = context, 0, budget, session
    entry.request = counts[COUNT.ARRIVED]
    entry.bytes, entry.preferred = size_bytes, preferred
    entry.arrived_s, entry.heard_s = arrived_s, now
    entry.streams = entry.probe = 0
    counts[COUNT.ARRIVED] += 1
    counts[COUNT.WAITING] += 1
    counts[COUNT.WAITING_TOKENS] += context
    counts[COUNT.WAITING_BYTES] += size_bytes
    entry.next, entry.previous = NOBODY, kinds[kind].last
    if kinds[kind].first == NOBODY:
        kinds[kind].first = e
        level, waits = np.inf, False
        for k in range(len(kinds)):
            if kinds[k].waiting > 0:
                level, waits = min(level, kinds[k].served), True
        if waits:
            kinds[kind].served = max(kinds[kind].served, level)
    else:
        entries[kinds[kind].last].next = e
    kinds[kind].last = e
    kinds[kind].waiting += 1
    return key_of(world, e)


@jitable
def unqueue(world, e):  # type: ignore[no-untyped-def]
    """Take an entry out of its queue; it is in no list then."""
    entries, counts, kinds = entries_in(world), counts_in(world), kinds_in(world)
    entry = entries[e]
    kind = entry.kind
    if entry.previous == NOBODY:
        kinds[kind].first = entry.next
    else:
        entries[entry.previous].next = entry.next
    if entry.next == NOBODY:
        kinds[kind].last = entry.previous
    else:
        entries[entry.next].previous = entry.previous
    kinds[kind].waiting -= 1
    counts[COUNT.WAITING] -= 1
    counts[COUNT.WAITING_TOKENS] -= entry.context
    counts[COUNT.WAITING_BYTES] -= entry.bytes


@jitable
def free_entry(world, e):  # type: ignore[no-untyped-def]
    """Give an entry back: whoever still has its key finds nothing."""
    entries, counts = entries_in(world), counts_in(world)
    entries[e].state = FREE
    entries[e].generation += 1
    entries[e].next = counts[COUNT.FREE_FIRST]
    counts[COUNT.FREE_FIRST] = e
    counts[COUNT.DIRTY] = 1


@jitable
def add_saturated(world, r, old, new):  # type: ignore[no-untyped-def]
    """Count a context that has changed its length into K."""
    lengths, saturated = prices_in(world).saturation_tokens, saturated_in(world)
    for s in range(len(lengths)):
        saturated[r, s] += min(new, lengths[s]) - min(old, lengths[s])


@jitable
def dispatch(world, e, r, told_rank, reason, now):  # type: ignore[no-untyped-def]
    """A queued request goes to a rank."""
    unqueue(world, e)
    entries, counts, ranks, kinds = entries_in(world), counts_in(world), ranks_in(world), kinds_in(world)
    entry = entries[e]
    kinds[entry.kind].served += 1.0 / kinds[entry.kind].weight
    entry.state, entry.rank, entry.told_rank = LIVE, r, told_rank
    entry.reason, entry.epoch = reason, counts[COUNT.EPOCH]
    entry.dispatched_s = entry.heard_s = now
    counts[COUNT.LIVE] += 1
    counts[COUNT.DISPATCHED] += 1
    ranks[r].batch += 1
    ranks[r].context += entry.context
    ranks[r].sent_us += int(now * 1e6)
    ranks[r].dispatched += 1
    ranks[r].dispatched_tokens += entry.context
    add_saturated(world, r, 0, entry.context)
    keep(world, r, now, 0.0)
    i = view_in(world).instance[r]
    instances = instances_in(world)
    if instances[i].probes_left < LIMITED:
        instances[i].probes_left -= 1
        entry.probe = 1
        refresh_instance(world, i, now)
    else:
        refresh(world, r, now)


@jitable
def step(world, i, steps, now):  # type: ignore[no-untyped-def]
    """An instance has done so many steps more."""
    instances, counts = instances_in(world), counts_in(world)
    instances[i].steps += steps
    instances[i].stepped_s = now
    counts[COUNT.STEPS] += steps
    counts[COUNT.DIRTY] = 1


@jitable
def infer_step(world, e, i, now):  # type: ignore[no-untyped-def]
    """A lease has given tokens: every running request does, once a step.

    The first tokens of a request say nothing of steps before: they belong to the step that others have just shown, if
    that was less than half a step ago, else to a new one.
    """
    instances, entries = instances_in(world), entries_in(world)
    entry = entries[e]
    entry.streams += 1
    if entry.streams == 1:
        instances[i].running += 1
        same = instances[i].running > 1 and now - instances[i].stepped_s < 0.5 * instances[i].step_s
        entry.base = instances[i].steps - (1 if same else 0)
    ahead = entry.base + entry.streams - instances[i].steps
    if ahead <= 0 or instances[i].told:
        return
    took_s = (now - instances[i].stepped_s) / ahead
    if (entry.streams > 1 or instances[i].running > 1) and took_s < np.inf:
        known = instances[i].step_s > 0.0
        instances[i].step_s += (took_s - instances[i].step_s) * (0.25 if known else 1.0)
    step(world, i, ahead, now)


@jitable
def grow(world, e, tokens, now):  # type: ignore[no-untyped-def]
    """Count tokens that a lease has generated; fewer than none, where more had been counted than there were."""
    entries, ranks = entries_in(world), ranks_in(world)
    entry = entries[e]
    r, old = entry.rank, entry.context + entry.tokens
    entry.tokens += tokens
    if r == NOBODY or tokens == 0:
        return
    ranks[r].context += tokens
    ranks[r].generated += tokens
    add_saturated(world, r, old, old + tokens)
    keep(world, r, now, TOKENS_APART_S)
    refresh(world, r, now)


@jitable
def add_tokens(world, key, tokens, now):  # type: ignore[no-untyped-def]
    """A lease has generated so many tokens more; whether it is one."""
    e = find(world, key, LIVE)
    if e == NOBODY:
        return 0
    entries = entries_in(world)
    entries[e].heard_s = now
    counts_in(world)[COUNT.TOKENS] += tokens
    r = entries[e].rank
    if r != NOBODY:
        infer_step(world, e, view_in(world).instance[r], now)
    grow(world, e, tokens, now)
    return 1


@jitable
def set_lengths(world, key, context, tokens, now):  # type: ignore[no-untyped-def]
    """The engine says the exact lengths of a lease; -1: it does not. Whether it is one."""
    e = find(world, key, LIVE)
    if e == NOBODY:
        return 0
    entries, ranks = entries_in(world), ranks_in(world)
    entry = entries[e]
    entry.heard_s = now
    if context >= 0 and context != entry.context:
        r, old = entry.rank, entry.context + entry.tokens
        more = context - entry.context
        entry.context = context
        if r != NOBODY:
            ranks[r].context += more
            ranks[r].generated += more  # so that what is kept of the past adds up
            add_saturated(world, r, old, old + more)
            keep(world, r, now, 0.0)
            refresh(world, r, now)
    if tokens >= 0:
        counts_in(world)[COUNT.TOKENS] += max(tokens - entry.tokens, 0)
        grow(world, e, tokens - entry.tokens, now)
    return 1


@jitable
def release(world, e, finished, completed, now):  # type: ignore[no-untyped-def]
    """End a lease, and tell the policy if it was completed.

    Parameters
    ----------
    world, e : int
    finished : function
        What the policy learns.
    completed : int
        1: it ended by itself; 0: it was aborted.
    now : float
    """
    entries, counts, ranks, settings = (
        entries_in(world),
        counts_in(world),
        ranks_in(world),
        settings_in(world),
    )
    entry = entries[e]
    r = entry.rank
    tells = settings[SET.TELLS] > 0.0 and completed and entry.epoch == counts[COUNT.EPOCH]
    if tells and entry.told_rank != NOBODY:
        g, first = 0, 0
        if settings[SET.GROUPS] > 0.0:
            g = view_in(world).instance[entry.told_rank]
            first = instances_in(world)[g].first
        finished(
            Memory(memory_ints_in(world)[g], memory_floats_in(world)[g]), params_in(world),
            entry.request, entry.told_rank - first, entry.context, max(entry.tokens, 1),
        )  # fmt: skip
    if r != NOBODY:
        instances, i = instances_in(world), view_in(world).instance[r]
        length = entry.context + entry.tokens
        ranks[r].batch -= 1
        ranks[r].context -= length
        ranks[r].sent_us -= int(entry.dispatched_s * 1e6)
        ranks[r].released += 1
        ranks[r].released_tokens += length
        add_saturated(world, r, length, 0)
        keep(world, r, now, 0.0)
        if entry.streams > 0:
            instances[i].running -= 1
        if completed and entry.tokens > 0:
            pace_s = (now - entry.dispatched_s) / entry.tokens
            known = instances[i].pace_s > 0.0
            instances[i].pace_s += (pace_s - instances[i].pace_s) * (0.0625 if known else 1.0)
        if entry.probe:
            if instances[i].probes_left < LIMITED:
                most = int(settings[SET.PROBES])
                instances[i].probes_left = min(instances[i].probes_left + 1, most)
            refresh_instance(world, i, now)
        else:
            refresh(world, r, now)
    counts[COUNT.LIVE] -= 1
    counts[COUNT.FINISHED if completed else COUNT.ABORTED] += 1
    free_entry(world, e)
