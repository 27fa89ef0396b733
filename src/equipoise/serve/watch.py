"""Reads the engines, each in a task of its own: loads of ranks, whether they are well, how they number their ranks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

import aiohttp
from msgspec import structs

from equipoise.engines import Client, Observation
from equipoise.engines.reports import rank_reports
from equipoise.errors import EngineError, InputError
from equipoise.router import RankReport
from equipoise.serve.driver import Driver
from equipoise.serve.polling import Polling
from equipoise.serve.quiet import QuietLog
from equipoise.serve.tally import Tally
from equipoise.serve.targets import Node, Target
from equipoise.serve.verdicts import UNHEALTHY, UNREACHABLE, State, Verdicts

__all__ = ["Watch"]

_log = logging.getLogger(__name__)

MOST_NOTES = 32


_Act = Callable[[Target, State], Awaitable[None]]


class Watch:
    """Looks at all targets, each in a task of its own.

    Parameters
    ----------
    driver : Driver
    session : aiohttp.ClientSession
        To ask for health.
    client : Client
        Or clients by the name of the target, in `clients`.
    polling : Polling
    tally : Tally
    clients : mapping of str to Client, optional
    on_sized : callable, optional
        Told when the ranks of a target have become known, or are others than they were.
    """

    def __init__(
        self,
        driver: Driver,
        session: aiohttp.ClientSession,
        client: Client,
        polling: Polling,
        tally: Tally,
        *,
        clients: Mapping[str, Client] | None = None,
        on_sized: Callable[[Target], None] | None = None,
    ) -> None:
        self.driver, self.polling, self.tally = driver, polling, tally
        self._session, self._client, self._clients = session, client, clients or {}
        self._on_sized = on_sized or (lambda target: None)
        self._quiet = QuietLog(_log)
        self._verdicts = Verdicts(driver, polling, tally, self._quiet)
        self._states: dict[str, State] = {}

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Look at these from now on."""
        wanted = {target.name: target for target in targets}
        for name in [n for n in self._states if n not in wanted]:
            for task in self._states.pop(name).tasks:
                task.cancel()
        for name, target in wanted.items():
            if name not in self._states:
                state = self._states[name] = State()
                jobs = [self._run(target, state, self.look, self.polling.period_s)]
                if self.polling.health_path:
                    jobs.append(self._run(target, state, self.probe, self.polling.health_period_s))
                state.tasks = [asyncio.create_task(job, name=f"watch {name}") for job in jobs]

    async def close(self) -> None:
        """Look no more."""
        tasks = [task for state in self._states.values() for task in state.tasks]
        self._states.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def renew(self, name: str) -> None:
        """The router has newly got an instance: it is told what the last looks have shown."""
        state, i = self._states.get(name), self.driver.index(name)
        if state is not None and i is not None:
            self._verdicts.again(state, i)

    def problem(self, name: str) -> str:
        """What is wrong with a target, in words; empty: nothing."""
        state = self._states.get(name)
        return (state.problem or ", ".join(sorted(state.lost))) if state is not None else ""

    async def _run(self, target: Target, state: State, act: _Act, period_s: float) -> None:
        while True:
            began_s = self.driver.now_s()
            try:
                await act(target, state)
            except Exception:  # of this target only; the others are looked at by tasks of their own
                _log.exception("looking at %s failed", target.name)
            spent_s = self.driver.now_s() - began_s
            # Spread over the period, so that many engines are not read in one burst.
            pause_s = period_s * random.uniform(0.9, 1.1)
            await asyncio.sleep(max(pause_s - spent_s, pause_s / 10))

    async def look(self, target: Target, state: State | None = None) -> None:
        """One look at the loads of a target."""
        state = state if state is not None else self._states.setdefault(target.name, State())
        self.tally.polls.add(target.name)
        client = self._clients.get(target.name, self._client)
        sent_s = self.driver.now_s()
        try:
            found = [(node, await client.observe(node.engine, node.adapter)) for node in target.nodes]
            for node, seen in found:
                self._size(target, node, seen)
        except (EngineError, InputError) as error:
            self._verdicts.failed(target, state, error)
            return
        state.problem = ""
        state.failures = 0
        for node in target.nodes:
            await self._number(target, node, client)
        i = self.driver.index(target.name)
        if i is None and self.driver.owners is None:
            return
        reports: list[RankReport] = []
        for node, observations in found:
            self._notes(target, state, observations)
            self._preemptions(target, state, node, observations)
            try:
                own = rank_reports(node.engine, i or 0, observations, sent_s)
            except EngineError as error:
                self._verdicts.failed(target, state, error)
                return
            reports += (
                [structs.replace(one, rank=node.first + one.rank) for one in own] if node.first else own
            )
        state.reports = reports
        self._verdicts.missing_ranks(target, state, i, {report.rank for report in reports})
        self._verdicts.well(target, state, UNREACHABLE)
        if reports and i is not None:
            self.driver.report(reports)

    async def probe(self, target: Target, state: State | None = None) -> None:
        """Ask a target whether it is well."""
        state = state if state is not None else self._states.setdefault(target.name, State())
        timeout = aiohttp.ClientTimeout(total=self.polling.timeout_s)
        worst = 0
        for node in target.nodes:
            try:
                async with self._session.get(
                    node.engine.urls[0] + self.polling.health_path, timeout=timeout, allow_redirects=False
                ) as answer:
                    worst = max(worst, answer.status)
            except (aiohttp.ClientError, OSError):
                return  # slow, or nobody there: the looks say so
        if worst < 500:
            state.unwell = 0
            self._verdicts.well(target, state, UNHEALTHY)
            return
        state.unwell += 1
        if state.unwell >= self.polling.lost_after:
            self._verdicts.lost(target, state, UNHEALTHY)

    # -- inside --------------------------------------------------------------------------------------------------

    def _notes(self, target: Target, state: State, observations: Iterable[Observation]) -> None:
        """What was odd about a look, said once."""
        for note in (note for observation in observations for note in observation.notes):
            if note not in state.said and len(state.said) < MOST_NOTES:
                state.said.add(note)
                _log.info("%s: %s", target.name, note)

    def _preemptions(
        self, target: Target, state: State, node: Node, observations: Iterable[Observation]
    ) -> None:
        """Count what the engine has thrown out since the last look; a smaller number is that of a new engine."""
        for place, observation in enumerate(observations):
            for load in observation.ranks:
                if load.preemptions is None or load.worker_id not in ("", node.engine.worker_id):
                    continue
                key = (node.first, place, load.rank)
                before = state.preempted.get(key, load.preemptions)
                state.preempted[key] = load.preemptions
                new = load.preemptions - before
                self.tally.preemptions.add(target.name, new if new >= 0 else load.preemptions)

    def _size(self, target: Target, node: Node, observations: tuple[Observation, ...]) -> None:
        """Learn how many ranks there are, or see that they are as many as was said."""
        loads = [load for observation in observations for load in observation.ranks]
        if not loads:
            return
        self._name_worker(target, node, observations)
        found = len({load.rank for load in loads if load.worker_id in ("", node.engine.worker_id)})
        if found and not node.sized:
            target.size(node, found)
            self._on_sized(target)
        elif 0 < found < node.engine.ranks and node.engine.mode == "header":
            words = f"{target.name} shows {found} ranks of the {node.engine.ranks} configured"
            self._quiet(f"few {target.name}", words)

    def _name_worker(self, target: Target, node: Node, observations: tuple[Observation, ...]) -> None:
        """Without its worker's id Dynamo ignores a rank; where there is one worker, it is that one."""
        workers = {worker for observation in observations for worker in observation.workers}
        if node.engine.kind != "dynamo" or node.engine.worker_id or not workers:
            return
        if len(workers) > 1:
            raise InputError(
                f"{node.engine.urls[0]} has {len(workers)} workers: {', '.join(sorted(workers)[:4])}",
                fix="name each as a worker of its own, with worker_id= and metrics_url=",
            )
        node.engine = replace(node.engine, worker_id=workers.pop(), mode="header")
        target.renumber()

    async def _number(self, target: Target, node: Node, client: Client) -> None:
        """Find how a node that is not the first of its barrier numbers its ranks."""
        if node.probe is None or node.engine.numbering != "unknown":
            return
        await client.probe(node.engine, node.probe, self.polling.numbering_model, self.driver.now_s())
        if node.probe.numbering != "unknown":
            node.engine = replace(node.engine, numbering=node.probe.numbering)
            target.renumber()
            _log.info("%s numbers its ranks %sly", node.engine.urls[0], node.probe.numbering)
