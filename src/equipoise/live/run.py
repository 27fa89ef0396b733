"""The whole of a live run: find the engine, warm it, probe it, run every policy as often as asked, keep everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import aiohttp
import polars as pl

from equipoise.engines import Client
from equipoise.errors import EngineError, EquipoiseError, InputError
from equipoise.live.about import About, RunAbout
from equipoise.live.before import Before
from equipoise.live.describe import PLANNED, describe, now
from equipoise.live.looking import drain
from equipoise.live.one_run import OneRun, router_of
from equipoise.live.parts import collect
from equipoise.live.plan import ENGINE, LivePlan, planned
from equipoise.live.preflight import Found, find, fitting, ranks_of
from equipoise.live.rows import empty, read_table, table_path, write_table
from equipoise.live.step_logs import steps_of_logs
from equipoise.live.tls import believed, tls_context
from equipoise.live.wire import Connections
from equipoise.serve.run import settle_collector
from equipoise.traces.trace import Trace
from equipoise.traces.writing import write as write_trace

__all__ = ["LiveRun"]

AGAIN_S = 0.5
STOPPED = "Stopped: "
"""Begins the note on why it ended before its end; a run that is resumed forgets it."""
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
        Told how many requests have ended, and how many there are in all runs.
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
        if self.about is not None and all(one.state == "done" for one in self.about.runs):
            return self.about
        headers = {"Authorization": f"Bearer {plan.worker_key}"} if plan.worker_key else None
        tls = tls_context(plan.ca_file, insecure=plan.insecure)
        connections = Connections(tls)
        async with aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(keepalive_timeout=3.0, ssl=tls),
            trust_env=False,
        ) as session:
            client = Client(session, headers=headers)
            try:
                try:
                    found = await find(plan, client, session)
                except EngineError as error:
                    raise believed(error) from error
                trace, left_out = fitting(plan, found.longest_tokens)
                about = self._begin(trace, found)
                if left_out:
                    self._note(about, left_out)
                try:
                    await self._all(about, trace, found, session, client, connections)
                except BaseException as error:
                    about.state = "stopped"
                    if isinstance(error, EquipoiseError):
                        self._note(about, f"{STOPPED}{error}")
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
        was, now_there = ([one.ranks for one in some] for some in (about.engine.instances, found.instances))
        if was != now_there:
            raise EngineError(
                f"The engine is another one than before: instances of {_listed(was)} ranks then, of "
                f"{_listed(now_there)} now; begin a new run in another folder."
            )
        about.state = "running"
        about.notes = [note for note in about.notes if not note.startswith(STOPPED)]
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
        before = Before(plan, found, client, connections, lambda text: self._note(about, text))
        prompts = await before.prompts(trace)
        if plan.probe and not table_path(self.folder, "steps").exists() and not self._stopping:
            await before.probe(self.folder, prompts, self._say)
        for one in about.runs:
            if self._stopping:
                break
            if one.state == "done" or (before.unpinned and one.policy != ENGINE):
                one.state = "done" if one.state == "done" else "failed"
                continue
            await self._drained(about, one, client, found)
            runner = OneRun(plan, trace, found, prompts, connections, session, client, self.folder)
            self._current = runner
            before_it = sum(other.state == "done" for other in about.runs) * len(trace)
            total = len(about.runs) * len(trace)
            one.started_at, one.state = now(), "stopped"  # what it stays if this process is killed
            about.write(self.folder)
            self._say(f"run {one.order + 1} of {len(about.runs)}: {one.policy}, repeat {one.repeat + 1}")
            try:
                await runner.run(one, partial(self._ended, before_it, total))
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
            self._note(about, f"{STOPPED}{self._stopping}.")

    def _ended(self, before_it: int, total: int, done: int) -> None:
        self._tell(before_it + done, total)

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


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
