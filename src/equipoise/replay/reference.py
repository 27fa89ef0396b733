"""The slow, obvious twin of the kernel: one Python object a request, everything recomputed at every step.

It takes the same arguments and fills the same `Outcome`; a test holds the two equal, bit for bit. It shares no code
with the kernel but the policy (its plain-Python self), and it is the engine for a policy that does not compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.replay.layout import (
    BAD_RANK,
    ENDED,
    MAX_ROUND,
    NO_ROOM,
    ORDERLESS_ROUNDS,
    SERIES,
    STUCK,
    TOTALS,
    Outcome,
    PoolLayout,
    Settings,
    Work,
)
from equipoise.types import Floats, Ints, Memory, Prices, Ranks, Requests

__all__ = ["run_reference"]


@dataclass(slots=True)
class _Request:
    row: int
    context: int
    output: int
    rank: int = -1
    offered_boundary: int = -1
    offered_s: float = 0.0
    started: bool = False
    progress: int = 0


class _Pool:
    """All requests of a run, by where they are."""

    def __init__(self, work: Work, layout: PoolLayout, prices: Prices) -> None:
        self.work, self.layout, self.prices = work, layout, prices
        self.ranks = layout.instances * layout.ranks_per_instance
        self.placed: list[_Request] = []
        self.queue: list[_Request] = []
        self.released = 0
        self.end_s = [math.inf] * layout.instances
        self.now, self.boundaries = 0.0, 0

    @property
    def largest(self) -> int:
        return self.layout.kv_capacity_tokens - self.layout.growth_reserve_tokens

    def loads(self, pick: Callable[[_Request], bool] = lambda q: True) -> tuple[Ints, Ints, Ints]:
        """B, C and K of every rank, counted request by request, over those that a test picks."""
        lengths = self.prices.saturation_tokens
        batch = np.zeros(self.ranks, dtype=np.int64)
        context = np.zeros(self.ranks, dtype=np.int64)
        saturated = np.zeros((self.ranks, len(lengths)), dtype=np.int64)
        for q in filter(pick, self.placed):
            batch[q.rank] += 1
            context[q.rank] += q.context + q.progress
            for s, length in enumerate(lengths):
                saturated[q.rank, s] += min(q.context + q.progress, int(length))
        return batch, context, saturated

    def view(self) -> Ranks:
        """What the policy sees."""
        batch, context, saturated = self.loads()
        slots = self.layout.max_batch - batch
        instance = np.arange(self.ranks) // self.layout.ranks_per_instance
        starts_in_s = [end - self.now if end != math.inf else 0.0 for end in self.end_s]
        return Ranks(
            batch=batch,
            context_tokens=context,
            free_tokens=np.where(slots > 0, self.largest - context, -1),
            free_slots=slots,
            saturated_tokens=saturated,
            unseen_requests=np.zeros(self.ranks, dtype=np.int64),
            instance=instance,
            rank=np.arange(self.ranks),
            starts_in_s=np.array(starts_in_s)[instance],
            report_age_steps=np.zeros(self.ranks, dtype=np.int64),
        )

    def ask(self, asked: list[_Request]) -> Requests:
        """What the policy is asked."""
        sessions = self.work.session
        context = [q.context for q in asked]
        steps = [(self.boundaries - q.offered_boundary) // self.layout.instances for q in asked]
        return Requests(
            context_tokens=np.array(context, dtype=np.int64),
            reserve_tokens=np.array(context, dtype=np.int64),
            budget_tokens=np.full(len(asked), -1, dtype=np.int64),
            session=np.array([sessions[min(q.row, len(sessions) - 1)] for q in asked], dtype=np.int64),
            request=np.array([q.row for q in asked], dtype=np.int64),
            waited_steps=np.array(steps, dtype=np.int64),
            waited_s=np.array([self.now - q.offered_s for q in asked]),
        )

    def instance_of(self, request: _Request) -> int:
        return request.rank // self.layout.ranks_per_instance


def run_reference(
    work: Work,
    layout: PoolLayout,
    settings: Settings,
    prices: Prices,
    place: Callable[..., Any],
    finished: Callable[..., Any],
    params: Floats,
    memory_ints: Ints,
    memory_floats: Floats,
    out: Outcome,
) -> None:
    """Replay a trace and fill ``out``; arguments as `equipoise.replay.kernel.run`."""
    place = getattr(place, "py_func", place)
    finished = getattr(finished, "py_func", finished)
    pool = _Pool(work, layout, prices)
    ended, n = out.ended, len(work.context_tokens)
    ended[ENDED.SERIES_STEPS] = 1
    now, started, idle_rounds, counting = 0.0, 0, 0, False
    starts = layout.group_starts * layout.ranks_per_instance

    while True:
        i = int(np.argmin(pool.end_s))
        coming = math.inf
        if not settings.saturated and pool.released < n:
            coming = float(work.arrival_s[pool.released])
        if math.inf in pool.end_s and coming < pool.end_s[i]:
            now = max(now, coming)
        elif pool.end_s[i] == math.inf:
            if not pool.queue and pool.released == n:
                break
            idle_rounds += 1
            if idle_rounds > ORDERLESS_ROUNDS:
                ended[ENDED.ERROR], ended[ENDED.ERROR_REQUEST] = STUCK, pool.queue[0].row
                break
        else:
            now = pool.end_s[i]
            pool.end_s[i] = math.inf
            pool.boundaries += 1
            running = [q for q in pool.placed if q.started and pool.instance_of(q) == i]
            for q in sorted(running, key=lambda q: q.row):
                q.progress += 1
                ended[ENDED.TOKENS] += 1
                if q.progress == q.output:
                    pool.placed.remove(q)
                    ended[ENDED.FINISHED] += 1
                    ended[ENDED.FINISHED_TOKENS] += q.output
                    if settings.keep_requests:
                        out.finish_s[q.row] = now
                    if settings.tells_finished:
                        g = int(np.searchsorted(starts, q.rank, side="right")) - 1
                        own = Memory(memory_ints[g], memory_floats[g])
                        finished(own, params, q.row, q.rank - starts[g], q.context, q.output)
        pool.now = now

        while pool.released < n:
            row = pool.released
            if settings.saturated:
                if len(pool.placed) + len(pool.queue) >= settings.concurrency:
                    break
            elif work.arrival_s[row] > now:
                break
            if work.context_tokens[row] > pool.largest:
                ended[ENDED.REJECTED] += 1
            else:
                pool.queue.append(_Request(row, int(work.context_tokens[row]), int(work.output_tokens[row])))
            pool.released += 1

        while pool.queue:
            asked = min(len(pool.queue), MAX_ROUND)
            placed, error = _round(pool, settings, place, params, memory_ints, memory_floats, out)
            if error is not None:
                request, rank, known = error
                ended[ENDED.ERROR] = NO_ROOM if known else BAD_RANK
                ended[ENDED.ERROR_REQUEST], ended[ENDED.ERROR_RANK] = request, rank
                break
            if placed:
                idle_rounds = 0
            if placed < asked:
                break
        if ended[ENDED.ERROR]:
            break
        draining = pool.released == n and not pool.queue
        if draining and not settings.drain:
            break

        for p in range(layout.instances):
            members = [q for q in pool.placed if pool.instance_of(q) == p]
            if pool.end_s[p] != math.inf or not members:
                continue
            for q in (q for q in members if not q.started):
                q.started = True
                if settings.keep_requests:
                    out.start_s[q.row] = now
            ended[ENDED.PEAK_RUNNING] = max(ended[ENDED.PEAK_RUNNING], len(pool.placed))
            turned_over = ended[ENDED.FINISHED] >= settings.warmup_turnovers * ended[ENDED.PEAK_RUNNING]
            if counting and not turned_over:
                out.totals[:] = 0.0
                out.series[:, SERIES.COUNTED] = 0.0
            counting = turned_over
            cost = _note_step(pool, p, now, settings, started, counting and not draining, out)
            pool.end_s[p] = now + cost * settings.seconds_per_unit
            started += 1

    batch, context, saturated = pool.loads()
    ended[ENDED.ARRIVED] = pool.released
    ended[ENDED.QUEUED] = len(pool.queue)
    ended[ENDED.RUNNING] = len(pool.placed)
    ended[ENDED.STEPS] = started
    unsaturated = sum(
        q.context + q.progress < length for q in pool.placed for length in prices.saturation_tokens
    )
    ended[ENDED.RESIDUE] = batch.sum() + context.sum() + saturated.sum() + unsaturated


def _round(
    pool: _Pool,
    settings: Settings,
    place: Callable[..., Any],
    params: Floats,
    memory_ints: Ints,
    memory_floats: Floats,
    out: Outcome,
) -> tuple[int, tuple[int, int, bool] | None]:
    """One round of placement: how many were placed, or (request, rank, rank is known) of a forbidden choice."""
    asked = pool.queue[:MAX_ROUND]
    new = {id(q) for q in asked if q.offered_boundary < 0}
    for q in asked:
        if q.offered_boundary < 0:
            q.offered_boundary = pool.boundaries
            q.offered_s = pool.now if settings.saturated else float(pool.work.arrival_s[q.row])
    out.ended[ENDED.ROUNDS] += 1
    chosen = np.full(len(asked), -1, dtype=np.int64)
    view = pool.view()
    if len(pool.layout.group_starts) == 2:
        place(
            view,
            pool.ask(asked),
            pool.prices,
            params,
            Memory(memory_ints[0], memory_floats[0]),
            chosen,
        )
    else:
        _place_in_groups(pool, view, asked, settings, place, params, memory_ints, memory_floats, chosen)
    placed = 0
    batch, context, _ = pool.loads()
    for q, rank in zip(asked, chosen.tolist(), strict=True):
        if rank == -1:
            out.ended[ENDED.BLOCKED_REQUESTS] += id(q) in new
            out.ended[ENDED.BLOCKED_ROUNDS] += 1
            continue
        known = 0 <= rank < pool.ranks
        if not known or context[rank] + q.context > pool.largest or batch[rank] >= pool.layout.max_batch:
            return placed, (q.row, rank, known)
        batch[rank] += 1
        context[rank] += q.context
        q.rank = rank
        out.rank[q.row] = rank
        pool.queue.remove(q)
        pool.placed.append(q)
        placed += 1
    return placed, None


def _place_in_groups(
    pool: _Pool,
    view: Ranks,
    asked: list[_Request],
    settings: Settings,
    place: Callable[..., Any],
    params: Floats,
    memory_ints: Ints,
    memory_floats: Floats,
    chosen: Ints,
) -> None:
    """Group with room and the least load a rank first, this round's choices included; then the policy inside it."""
    starts = pool.layout.group_starts * pool.layout.ranks_per_instance
    bounds = list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    loads = view.context_tokens if settings.group_by_tokens else view.batch
    totals = [int(loads[a:b].sum()) for a, b in bounds]
    members: list[list[int]] = [[] for _ in bounds]
    for j, q in enumerate(asked):
        full = [not (view.free_tokens[a:b] >= q.context).any() for a, b in bounds]
        order = [(full[g], totals[g] / (b - a), g) for g, (a, b) in enumerate(bounds)]
        g = min(order)[2]
        members[g].append(j)
        totals[g] += q.context if settings.group_by_tokens else 1
    for g, ((a, b), rows) in enumerate(zip(bounds, members, strict=True)):
        if not rows:
            continue
        part = np.full(len(rows), -1, dtype=np.int64)
        columns: list[Any] = [column[a:b] for column in view]
        inside = Ranks(*columns)
        requests = pool.ask([asked[j] for j in rows])
        place(inside, requests, pool.prices, params, Memory(memory_ints[g], memory_floats[g]), part)
        for j, rank in zip(rows, part.tolist(), strict=True):
            chosen[j] = rank + a if 0 <= rank < b - a else (pool.ranks if rank >= 0 else rank)


def _note_step(
    pool: _Pool, p: int, now: float, settings: Settings, number: int, counted: bool, out: Outcome
) -> float:
    """Price the step that instance p starts and note what it was; the price."""
    prices, width = pool.prices, pool.layout.ranks_per_instance
    here = slice(p * width, (p + 1) * width)
    batch, context, saturated = (column[here] for column in pool.loads(lambda q: q.started))
    shares = [
        [_share(prices, t, batch[r], context[r], saturated[r]) for r in range(width)]
        for t in range(_terms(prices))
    ]
    cost = ideal = work = prices.constant
    for t, share in enumerate(shares):
        work += _together(prices, t, batch, int(context.sum()), saturated.sum(axis=0)) / width
        ideal += _even(prices, t, int(batch.sum()), int(context.sum()), saturated.sum(axis=0), width)
        if not prices.barrier_step:
            cost += max(share)
    if prices.barrier_step:
        cost += max(_sum([share[r] for share in shares]) for r in range(width))
    end = now + cost * settings.seconds_per_unit
    mean_batch, mean_context = int(batch.sum()) / width, int(context.sum()) / width
    over = int((context > pool.layout.kv_capacity_tokens).sum())

    if counted:
        totals = out.totals
        if totals[TOTALS.STEPS] == 0:
            totals[TOTALS.FIRST_S], totals[TOTALS.FIRST_STEP] = now, number
        totals[TOTALS.LAST_S] = max(totals[TOTALS.LAST_S], end)
        totals[TOTALS.LAST_STEP] = number
        for position, value in (
            (TOTALS.STEPS, 1.0),
            (TOTALS.COST, cost),
            (TOTALS.IDEAL, ideal),
            (TOTALS.WORK, work),
            (TOTALS.MAX_BATCH, batch.max()),
            (TOTALS.MEAN_BATCH, mean_batch),
            (TOTALS.MAX_CONTEXT, context.max()),
            (TOTALS.MEAN_CONTEXT, mean_context),
            (TOTALS.TOKENS, batch.sum()),
            (TOTALS.OVER_CAPACITY, over),
        ):
            totals[position] += value

    rows, series = int(out.ended[ENDED.SERIES_ROWS]), out.series
    if rows == 0 or series[rows - 1, SERIES.STEPS] == out.ended[ENDED.SERIES_STEPS]:
        if rows == len(series):
            pairs = series.reshape(rows // 2, 2, -1)
            merged = pairs.sum(axis=1)
            merged[:, SERIES.START_S] = pairs[:, 0, SERIES.START_S]
            same = pairs[:, 0, SERIES.INSTANCE] == pairs[:, 1, SERIES.INSTANCE]
            merged[:, SERIES.INSTANCE] = np.where(same, pairs[:, 0, SERIES.INSTANCE], -1)
            series[:] = 0.0
            series[: rows // 2] = merged
            rows //= 2
            out.ended[ENDED.SERIES_STEPS] *= 2
        series[rows, SERIES.START_S], series[rows, SERIES.INSTANCE] = now, p
        rows += 1
        out.ended[ENDED.SERIES_ROWS] = rows
    elif series[rows - 1, SERIES.INSTANCE] != p:
        series[rows - 1, SERIES.INSTANCE] = -1
    series[rows - 1, SERIES.STEPS : SERIES.OVER_CAPACITY + 1] += [
        1, counted, cost, ideal, work, batch.max(), mean_batch, context.max(), mean_context, len(pool.queue), over,
    ]  # fmt: skip

    taken, since = int(out.ended[ENDED.SNAPSHOTS]), number - settings.snapshot_first
    if taken < len(out.snapshot_step) and since >= 0 and since % settings.snapshot_every == 0:
        out.snapshot_step[taken] = number, p
        out.snapshot_s[taken] = now, end - now
        out.snapshot_batch[taken] = batch
        out.snapshot_context[taken] = context
        out.snapshot_saturated[taken] = saturated
        out.ended[ENDED.SNAPSHOTS] += 1
    return float(cost)


def _terms(prices: Prices) -> int:
    return len(prices.context)


def _share(prices: Prices, t: int, batch: int, context: int, saturated: Ints) -> float:
    """Price of one rank's share of a term."""
    price = _batch_price(prices, t, batch)
    price = price + prices.context[t] * context
    for s, tokens in enumerate(saturated):
        price = price + prices.saturated[t, s] * tokens
    return float(price)


def _batch_price(prices: Prices, t: int, batch: int) -> float:
    """Price of a rank's batch, from the table or beyond its end."""
    last = prices.batch.shape[1] - 1
    if batch <= last:
        return float(prices.batch[t, batch])
    return float(prices.batch[t, last] + prices.batch_tail[t] * (batch - last))


def _together(prices: Prices, t: int, batch: Ints, context: int, saturated: Ints) -> float:
    """Price of a term added up over all ranks, in the kernel's order: a linear batch price from the total."""
    if prices.batch.shape[1] == 1:
        total = len(batch) * prices.batch[t, 0] + prices.batch_tail[t] * int(batch.sum())
    else:
        total = _sum([_batch_price(prices, t, int(b)) for b in batch])
    total = total + prices.context[t] * context
    for s, tokens in enumerate(saturated):
        total = total + prices.saturated[t, s] * tokens
    return float(total)


def _even(prices: Prices, t: int, batch: int, context: int, saturated: Ints, ranks: int) -> float:
    """Price of a term with the totals spread evenly."""
    last = prices.envelope.shape[1] - 1
    low = min(batch // ranks, last)
    slope = prices.envelope[t, low + 1] - prices.envelope[t, low] if low < last else prices.envelope_tail[t]
    price = prices.envelope[t, low] + slope * (batch / ranks - low)
    price = price + prices.context[t] * (context / ranks)
    for s, tokens in enumerate(saturated):
        price = price + prices.saturated[t, s] * (tokens / ranks)
    return float(price)


def _sum(values: list[float]) -> float:
    """Left to right, as the kernel adds; Python's own `sum` of floats is compensated from 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total
