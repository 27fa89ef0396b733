"""The whole of a live run: find the engine, warm it, probe it, run every policy as often as asked, keep everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import polars as pl

from equipoise.engines import Client
from equipoise.errors import EngineError, EquipoiseError, InputError
from equipoise.live.about import About, RunAbout
from equipoise.live.describe import PLANNED, describe, now
from equipoise.live.looking import RecordingDriver, drain
from equipoise.live.one_run import OneRun, router_of
from equipoise.live.parts import PartWriter, RequestRow, collect, part_path
from equipoise.live.plan import ENGINE, LivePlan, planned
from equipoise.live.preflight import Found, find, fitting, learn_wording, ranks_of, try_pins
from equipoise.live.probe import PROBE, run_probe, stages
from equipoise.live.prompts import Prompts, Wording
from equipoise.live.rows import empty, read_table, table_path, write_table
from equipoise.live.sender import Sender
from equipoise.live.step_logs import steps_of_logs
from equipoise.live.steps import steps_of
from equipoise.live.wire import Connections
from equipoise.serve.run import settle_collector
from equipoise.traces.trace import Trace
from equipoise.traces.writing import write as write_trace

__all__ = ["LiveRun"]

AGAIN_S = 0.5
Say = Callable[[str], None]
Tell = Callable[[int, int], None]


class LiveRun:
    """Carries out a plan.

    Parameters
    ----------
    plan : LivePlan
    folder : Path
        What is measured goes there.
    about : About, optional
        Of an earlier try in the same folder, whose runs that are done stay.
    say : callable
        Takes lines for a person.
    tell : callable
        Told how many requests of a run have ended, and how many there are.
    """

    def __init__(
        self,
        plan: LivePlan,
        folder: Path,
        about: About | None = None,
        *,
        say: Say = lambda line: None,
        tell: Tell = lambda done, total: None,
    ) -> None:
        self.plan, self.folder, self.about = plan, folder, about
        self._say, self._tell = say, tell
        self._current: OneRun | None = None
        self._stopping = ""
        self._unpinned = False

    def stop(self, why: str) -> None:
        """End it as soon as it can be; what has been measured is kept."""
        self._stopping = self._stopping or why
        if self._current is not None:
            self._current.stop(why)

    @property
    def running(self) -> bool:
        """Whether requests of the plan are under way, so that `stop` ends it in order."""
        return self._current is not None

    async def run(self) -> About:
        """Run it.

        Returns
        -------
        About
            With ``state`` ``complete`` or ``stopped``.

        Raises
        ------
        EngineError
            The engine is not there, or not what was said. Nothing has been written then, if nothing was before.
        InputError
            The trace does not fit it; the folder cannot be written.
        """
        plan = self.plan
        headers = {"Authorization": f"Bearer {plan.worker_key}"} if plan.worker_key else None
        connections = Connections()
        async with aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(keepalive_timeout=3.0),
            trust_env=False,
        ) as session:
            client = Client(session, headers=headers)
            try:
                found = await find(plan, client)
                trace, left_out = fitting(plan, found.longest_tokens)
                about = self._begin(trace, found)
                if left_out:
                    self._note(about, left_out)
                try:
                    await self._all(about, trace, found, session, client, connections)
                except EquipoiseError as error:
                    about.state = "stopped"
                    self._note(about, str(error))
                    raise
                finally:
                    collect(self.folder)
                    about.write(self.folder)
            finally:
                connections.close()
        return about

    def _begin(self, trace: Trace, found: Found) -> About:
        """Describe it in the folder."""
        about = self.about
        if about is None:
            about = self.about = describe(self.plan, trace, found)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"cannot be written ({error.strerror})",
                    where=str(self.folder),
                    fix="choose another folder",
                ) from error
            write_trace(trace, self.folder / PLANNED)
            write_table(table_path(self.folder, "trace"), "trace", planned(trace))
        about.state = "running"
        about.write(self.folder)
        ranks = ranks_of(found.targets)
        self._say(
            f"{self.plan.engine} {found.version or ''} at {found.targets[0].url}: model {found.model}, "
            f"{len(found.targets)} instance{'s'[: len(found.targets) > 1]}, {ranks} ranks".replace("  ", " ")
        )
        return about

    async def _all(
        self,
        about: About,
        trace: Trace,
        found: Found,
        session: aiohttp.ClientSession,
        client: Client,
        connections: Connections,
    ) -> None:
        plan = self.plan
        await asyncio.to_thread(self._warm_router, found)
        settle_collector()
        prompts = await self._prepare(about, trace, found, client, connections)
        if plan.probe and not table_path(self.folder, "steps").exists() and not self._stopping:
            await self._probe(about, found, client, connections, prompts)
        for one in about.runs:
            if self._stopping:
                break
            if one.state == "done" or (self._unpinned and one.policy != ENGINE):
                continue
            await self._drained(about, one, client, found)
            runner = OneRun(plan, trace, found, prompts, connections, session, client, self.folder)
            self._current = runner
            one.started_at = now()
            self._say(f"run {one.order + 1} of {len(about.runs)}: {one.policy}, repeat {one.repeat + 1}")
            try:
                await runner.run(one, self._tell)
            finally:
                self._current = None
                one.state = "failed" if runner.trouble and plan.on_failure == "degrade" else "stopped"
            if not runner.trouble:
                one.state = "done"
            for note in one.notes:
                self._say(f"note: {note}")
            collect(self.folder)
            about.write(self.folder)
            if runner.trouble and (plan.on_failure == "stop" or self._stopping):
                self._stopping = self._stopping or runner.trouble
            elif runner.dead:
                await self._back(about, client, found)
        self._logs(about)
        done = all(one.state in ("done", "failed") for one in about.runs) and not self._stopping
        about.state = "complete" if done else "stopped"
        if self._stopping:
            self._note(about, f"Stopped: {self._stopping}.")

    def _warm_router(self, found: Found) -> None:
        """Compile or load what decides, before a request waits for it."""
        from equipoise.router import Arrival

        for policy in self.plan.policies:
            router = router_of(self.plan, policy, found, 0)
            for action in router.arrived(time.monotonic(), Arrival("warm", 1)):
                lease = getattr(action, "lease", None)
                if lease is not None:
                    router.tokens(time.monotonic(), lease, 1)
                    router.finished(time.monotonic(), lease)

    # -- before the runs -----------------------------------------------------------------------------------------

    def _sender(
        self, found: Found, connections: Connections, keep: Callable[[RequestRow], None], name: str
    ) -> Sender:
        plan = self.plan
        start_s = time.monotonic()
        driver = RecordingDriver(
            router_of(plan, ENGINE, found, 0),
            list(found.targets),
            label=(name, 0),
            start_s=start_s,
            keep=lambda row: None,
        )
        return Sender(
            driver,
            connections,
            engine=plan.engine,
            route=plan.route,
            model=found.model,
            timeout_s=plan.timeout_s,
            start_s=start_s,
            label=(name, 0, -1),
            done=keep,
            key=plan.worker_key,
        )

    async def _prepare(
        self, about: About, trace: Trace, found: Found, client: Client, connections: Connections
    ) -> Prompts:
        """Learn how text is counted, try the pins, warm the engine."""
        plan = self.plan
        sender = self._sender(found, connections, lambda row: None, "warm-up")
        wording = None
        if plan.prompts == "text":
            words = Prompts(trace, wording=Wording())
            wording = await learn_wording(plan, found, sender, words)
            self._note(
                about, f"A prompt of n words has {wording.fixed:g} + {wording.per_word:g} n tokens here."
            )
        prompts = Prompts(trace, ids=plan.token_ids, prefixes=plan.prefixes, wording=wording)
        if all(policy == ENGINE for policy in plan.policies) and not plan.probe:
            return prompts
        salt = (1 << 32) + int(time.time())  # of an earlier try in the same engine nothing is left to meet
        refused = await try_pins(plan, found, sender, prompts, salt, plan.warmup_requests)
        if refused and (plan.on_failure == "stop" or ENGINE not in plan.policies):
            raise EngineError(f"{refused}: without pins only --policies {ENGINE} can be measured.")
        if refused:
            self._unpinned = True
            self._note(about, f"Only the engine's own choice is measured: {refused}.")
            for one in about.runs:
                if one.policy != ENGINE:
                    one.state = "failed"
        return prompts

    async def _probe(
        self, about: About, found: Found, client: Client, connections: Connections, prompts: Prompts
    ) -> None:
        """Measure steps under known loads."""
        left = await drain(client, found.targets, self.plan.drain_timeout_s)
        if left:
            self._note(about, f"The engine was not empty before the probe: {left} requests.")
        writer = PartWriter(self.folder, PROBE)
        sender = self._sender(found, connections, writer.add, PROBE)
        plans = [stages(self.plan, one, found.longest_tokens) for one in about.engine.instances]
        self._say(f"probe: {max(len(one) for one in plans)} loads")
        salt = (1 << 33) + int(time.time())
        try:
            await run_probe(sender, found.targets, plans, prompts, salt, self._tell)
        finally:
            writer.close()
            collect(self.folder)
        rows = read_table(part_path(self.folder, PROBE, "requests"), "requests")
        steps = steps_of(rows, [(one.name, one.ranks) for one in about.engine.instances], PROBE)
        write_table(table_path(self.folder, "steps"), "steps", steps)
        answered = rows.filter(pl.col("finished_s").is_not_null())
        if len(answered) < len(rows):
            self._note(about, f"{len(rows) - len(answered)} of {len(rows)} requests of the probe failed.")
        if steps.is_empty():
            self._note(
                about, "The probe shows no single step: the engine bundles tokens, or nothing was answered."
            )

    # -- between the runs ----------------------------------------------------------------------------------------

    async def _drained(self, about: About, one: RunAbout, client: Client, found: Found) -> None:
        """Wait until the engine is empty."""
        left = await drain(client, found.targets, self.plan.drain_timeout_s)
        one.drained = not left
        if not left:
            return
        words = (
            f"The engine still has {left} requests {self.plan.drain_timeout_s:g} s after the last run: somebody else "
            "uses it, or it has lost them"
        )
        if self.plan.on_failure == "stop":
            raise EngineError(f"{words}; --drain-timeout-secs waits longer, --on-failure degrade goes on.")
        self._note(about, f"{words} (run {one.order + 1}).")

    async def _back(self, about: About, client: Client, found: Found) -> None:
        """Wait for an engine that has died to come back."""
        self._say(f"waiting up to {self.plan.drain_timeout_s:g} s for the engine to come back")
        end_s = time.monotonic() + self.plan.drain_timeout_s
        while not self._stopping:
            try:
                await drain(client, found.targets, 0.0)
                return
            except EngineError as error:
                if time.monotonic() > end_s:
                    self._stopping = f"the engine did not come back ({error})"
            await asyncio.sleep(AGAIN_S)

    def _logs(self, about: About) -> None:
        """Steps from the engine's own logs, beside those of the probe."""
        if not self.plan.step_logs:
            return
        path = table_path(self.folder, "steps")
        known = read_table(path, "steps") if path.exists() else empty("steps")
        try:
            read, notes = steps_of_logs(self.plan.step_logs, self.plan.kv_capacity_tokens)
        except EquipoiseError as error:
            self._note(about, f"The step logs cannot be used: {error}.")
            return
        for note in notes:
            self._note(about, note)
        write_table(path, "steps", pl.concat([known.filter(pl.col("source") != "log"), read]))

    def _note(self, about: About, text: str) -> None:
        if text not in about.notes:
            about.notes.append(text)
            self._say(f"note: {text}")
