"""Steps of an instance in the slow twin: who is preempted, admitted and computed at the start; what the end yields."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from equipoise.fleet.kernel.layout import (
    ABORTED,
    BY_INSTANCE,
    COUNTS,
    EXACT,
    FAILED,
    FINISHED,
    NO_PREEMPTION,
    PARTS,
    RECOMPUTE,
    TOO_MANY,
)
from equipoise.fleet.twin.life import end
from equipoise.fleet.twin.price import Piece, StepPrice, price_step
from equipoise.fleet.twin.state import Fleet, Instance, Rank, Request
from equipoise.fleet.twin.views import Views
from equipoise.replay.keeping import next_row, take_snapshot
from equipoise.replay.layout import ENDED, SERIES, TOTALS
from equipoise.types import Memory

__all__ = ["end_step", "start_step"]


def start_step(fleet: Fleet, instance: Instance, *, draining: bool) -> bool:
    """Start a step; False where a rank would run more requests than there are rows for."""
    pieces: list[list[Piece]] = []
    swapped = 0
    for rank in instance.ranks:
        pieces.append([])
        if not rank.up:
            continue
        swapped += _make_room(fleet, rank)
        admitted = _admit(fleet, rank)
        if admitted is None:
            return False
        swapped += admitted
        pieces[-1] = _compute_prompts(fleet, rank)
    fleet.counts[COUNTS.MIXED_STEPS] += any(pieces)
    price = price_step(fleet, instance, pieces, swapped)
    instance.end_s = fleet.now + price.cost * fleet.settings.seconds_per_unit
    _note(fleet, instance, price, draining)
    fleet.started += 1
    return True


def _held(fleet: Fleet, rank: Rank, *, grown: bool) -> int:
    return sum(fleet.hold(q.size + (q.growth if grown else 0)) for q in rank.rows)


def _outgrown(fleet: Fleet, q: Request) -> None:
    fleet.counts[COUNTS.OUTGROWN] += 1
    end(fleet, q, FAILED)


def _make_room(fleet: Fleet, rank: Rank) -> int:
    """Rows grow; the last ones are preempted while they do not fit. Tokens swapped out."""
    life, swapped, preempted = fleet.life, 0, False
    for q in rank.rows:
        q.growth = fleet.growth(q, q.decodes, q.admitted_size) if q.lack == 0 else 0
    while life.preemption != NO_PREEMPTION and rank.rows and _held(fleet, rank, grown=True) > rank.capacity:
        q = rank.rows.pop()
        if not rank.rows:
            _outgrown(fleet, q)
            break
        q.owed, q.lack, q.growth = q.lack, 0, 0
        if life.preemption == RECOMPUTE:
            q.owed = q.size
            fleet.counts[COUNTS.RECOMPUTED_TOKENS] += q.size
        else:
            q.swapped = True
            fleet.counts[COUNTS.SWAPPED_TOKENS] += q.size
            swapped += q.size
        rank.queue.insert(0, q)
        q.preemptions += 1
        fleet.counts[COUNTS.PREEMPTIONS] += 1
        preempted = True
    if preempted:
        rank.frozen = life.freeze_steps
    return swapped


def _admit(fleet: Fleet, rank: Rank) -> int | None:
    """Rows join from the engine's queue while they fit. Tokens swapped in; None: more rows than there may be."""
    swapped, preempts = 0, fleet.life.preemption != NO_PREEMPTION
    if rank.frozen > 0:
        rank.frozen -= bool(rank.rows or rank.queue)
        fleet.counts[COUNTS.FROZEN_RANK_STEPS] += bool(rank.queue)
        return 0
    while rank.queue and len(rank.rows) < rank.max_batch:
        q = rank.queue[0]
        growth = fleet.growth(q, 0, q.size) if q.owed == 0 else 0
        need = fleet.hold(q.size + (growth if preempts else 0))
        if _held(fleet, rank, grown=preempts) + need > rank.capacity:
            if rank.rows:
                break
            rank.queue.pop(0)  # it is alone, and does not fit even so
            _outgrown(fleet, q)
            continue
        if len(rank.rows) == fleet.ranked.rows:
            fleet.ended[ENDED.ERROR] = TOO_MANY
            fleet.ended[ENDED.ERROR_REQUEST], fleet.ended[ENDED.ERROR_RANK] = q.row, rank.number
            return None
        rank.rows.append(rank.queue.pop(0))
        if math.isnan(q.start_s):
            q.start_s = fleet.now
        q.lack, q.owed, q.growth = q.owed, 0, growth
        q.admitted_size, q.decodes = q.size, 0
        if q.swapped:
            q.swapped = False
            fleet.counts[COUNTS.SWAPPED_TOKENS] += q.size
            swapped += q.size
    return swapped


def _compute_prompts(fleet: Fleet, rank: Rank) -> list[Piece]:
    """Rows that lack tokens share the step's chunk, in order; they decode from the next step on."""
    budget, pieces = fleet.life.chunk_tokens, []
    for q in rank.rows:
        tokens = min(q.lack, budget)
        if tokens == 0:
            continue
        pieces.append((q.size - q.lack, tokens))
        q.lack -= tokens
        budget -= tokens
        fleet.counts[COUNTS.MIXED_TOKENS] += tokens
    return pieces


def _note(fleet: Fleet, instance: Instance, price: StepPrice, draining: bool) -> None:
    """Count a step, and keep what is to be kept of it."""
    ended, totals, series, now, p = (
        fleet.ended,
        fleet.out.totals,
        fleet.out.series,
        fleet.now,
        instance.number,
    )
    counts, parts = fleet.counts, fleet.fleet_out.parts
    ended[ENDED.PEAK_RUNNING] = max(ended[ENDED.PEAK_RUNNING], fleet.in_pool)
    turned_over = bool(ended[ENDED.FINISHED] >= fleet.settings.warmup_turnovers * ended[ENDED.PEAK_RUNNING])
    if fleet.counting and not turned_over:  # the pool outgrew what had turned over: the warm-up begins anew
        totals[:] = 0.0
        parts[:] = 0.0
        counts[COUNTS.COUNTED_TOKENS] = 0
        series[:, SERIES.COUNTED] = 0.0
    fleet.counting = turned_over
    counted = turned_over and not draining

    batch, context = price.batch, price.context
    mean_batch, mean_context = int(batch.sum()) / fleet.width, int(context.sum()) / fleet.width
    over = sum(_held(fleet, rank, grown=False) > rank.capacity for rank in instance.ranks)
    counts[COUNTS.QUERY_TOKENS] += price.queries
    if counted:
        if totals[TOTALS.STEPS] == 0:
            totals[TOTALS.FIRST_S], totals[TOTALS.FIRST_STEP] = now, fleet.started
        totals[TOTALS.LAST_S] = max(totals[TOTALS.LAST_S], instance.end_s)
        totals[TOTALS.LAST_STEP] = fleet.started
        for total, value in (
            (TOTALS.STEPS, 1.0),
            (TOTALS.COST, price.cost),
            (TOTALS.IDEAL, price.ideal),
            (TOTALS.WORK, price.work),
            (TOTALS.MAX_BATCH, batch.max()),
            (TOTALS.MEAN_BATCH, mean_batch),
            (TOTALS.MAX_CONTEXT, context.max()),
            (TOTALS.MEAN_CONTEXT, mean_context),
            (TOTALS.TOKENS, price.tokens),
            (TOTALS.OVER_CAPACITY, over),
        ):
            totals[total] += value
        for part, value in enumerate(price.parts):
            parts[part] += value
        parts[PARTS.ATTENTION_IDEAL] += price.attention_ideal
        counts[COUNTS.COUNTED_TOKENS] += price.tokens
    row = next_row(series, ended, now, p)
    for column, value in (
        (SERIES.STEPS, 1),
        (SERIES.COUNTED, counted),
        (SERIES.COST, price.cost),
        (SERIES.IDEAL, price.ideal),
        (SERIES.WORK, price.work),
        (SERIES.MAX_BATCH, batch.max()),
        (SERIES.MEAN_BATCH, mean_batch),
        (SERIES.MAX_CONTEXT, context.max()),
        (SERIES.MEAN_CONTEXT, mean_context),
        (SERIES.QUEUED, len(fleet.queue)),
        (SERIES.OVER_CAPACITY, over),
    ):
        series[row, column] += value
    since = fleet.started - fleet.settings.snapshot_first
    wanted = ended[ENDED.SNAPSHOTS] < len(fleet.out.snapshot_step)
    if wanted and since >= 0 and since % fleet.settings.snapshot_every == 0:
        take_snapshot(fleet.out, fleet.started, p, now, instance.end_s, batch, context, price.saturated)


def end_step(fleet: Fleet, views: Views, instance: Instance, finished: Callable[..., Any]) -> None:
    """End a step: tokens, those that end, what the policy learns, the report."""
    instance.end_s = math.inf
    instance.steps += 1
    fleet.boundaries += 1
    done: list[Request] = []
    for rank in instance.ranks:
        for q in list(rank.rows):
            if q.growth == 0:
                continue
            q.size += q.growth
            q.decodes += 1
            fleet.ended[ENDED.TOKENS] += q.growth
            q.growth = 0
            if math.isnan(q.first_s):
                q.first_s = fleet.now
            if q.size != q.until:
                continue
            rank.rows.remove(q)
            if q.until - q.context < q.output:
                end(fleet, q, ABORTED)
                continue
            end(fleet, q, FINISHED)
            done.append(q)
            pace = (fleet.now - q.start_s) / q.output
            instance.tpot_s = (
                pace if instance.tpot_s == 0 else instance.tpot_s + (pace - instance.tpot_s) / 16
            )
    if fleet.settings.tells_finished:
        for q in sorted(done, key=lambda q: q.row):
            _learn(fleet, q, finished)
    views.bring_up_to_date(instance)
    if fleet.settings.knows != EXACT:
        views.step_ended(instance)


def _learn(fleet: Fleet, q: Request, finished: Callable[..., Any]) -> None:
    """Tell the policy of a request that has its whole output."""
    starts = fleet.layout.group_starts * fleet.width
    g = int(np.searchsorted(starts, q.rank, side="right")) - 1
    groups = len(starts) - 1
    owner = g % fleet.settings.replicas if fleet.life.split == BY_INSTANCE else q.replica
    row = owner * groups + g
    memory = Memory(fleet.memory_ints[row], fleet.memory_floats[row])
    finished(memory, fleet.params, q.row, q.rank - int(starts[g]), q.context, q.output)
