"""Between finding an engine and the first run: how it counts, whether it takes pins, what its steps cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from equipoise.engines import Client
from equipoise.errors import EngineError
from equipoise.live.looking import RecordingDriver, drain
from equipoise.live.one_run import GONE, router_of
from equipoise.live.parts import PartWriter, RequestRow, collect, part_path
from equipoise.live.plan import ENGINE, LivePlan
from equipoise.live.preflight import Found, learn_wording, try_pins
from equipoise.live.probe import run_probe, stages
from equipoise.live.prompts import Prompts, Wording
from equipoise.live.rows import PROBE, read_table, table_path, write_table
from equipoise.live.sender import Sender
from equipoise.live.steps import steps_of
from equipoise.live.wire import Connections
from equipoise.traces.trace import Trace

__all__ = ["Before"]


@dataclass(slots=True)
class Before:
    """What comes before the first run.

    Parameters
    ----------
    plan : LivePlan
    found : Found
    client : Client
    connections : Connections
    note : callable
        Takes a sentence for ``run.json``.

    Attributes
    ----------
    unpinned : bool
        Whether pins are refused, so that only the engine's own choice can be measured.
    """

    plan: LivePlan
    found: Found
    client: Client
    connections: Connections
    note: Callable[[str], None]
    unpinned: bool = False

    async def prompts(self, trace: Trace) -> Prompts:
        """Learn how text is counted, try the pins, warm the engine.

        Raises
        ------
        EngineError
            Pins are refused and nothing else is to be measured; a small request fails.
        """
        plan, found = self.plan, self.found
        sender = self._sender(lambda row: None, "warm-up")
        wording = None
        if plan.prompts == "text":
            words = Prompts(trace, wording=Wording())
            wording = await learn_wording(plan, found, sender, words)
            self.note(f"A prompt of n words has {wording.fixed:g} + {wording.per_word:g} n tokens here.")
        prompts = Prompts(trace, ids=plan.token_ids, prefixes=plan.prefixes, wording=wording)
        if all(policy == ENGINE for policy in plan.policies) and not plan.probe:
            return prompts
        salt = (1 << 32) + int(time.time())  # of an earlier try in the same engine nothing is left to meet
        refused = await try_pins(plan, found, sender, prompts, salt, plan.warmup_requests)
        if refused and (plan.on_failure == "stop" or ENGINE not in plan.policies):
            raise EngineError(f"{refused}: without pins only --policies {ENGINE} can be measured.")
        if refused:
            self.unpinned = True
            self.note(f"Only the engine's own choice is measured: {refused}.")
        return prompts

    async def probe(self, folder: Path, prompts: Prompts, say: Callable[[str], None]) -> None:
        """Measure steps under known loads, into the table ``steps``.

        Raises
        ------
        EngineError
            The engine went away meanwhile. No step is kept then, so that a resumed run probes again.
        """
        if self.unpinned:
            return
        found = self.found
        left = await drain(self.client, found.targets, self.plan.drain_timeout_s)
        if left:
            self.note(f"The engine was not empty before the probe: {left} requests.")
        writer = PartWriter(folder, PROBE)
        plans = [stages(self.plan, one, found.longest_tokens) for one in found.instances]
        say(f"probe: {max(len(one) for one in plans)} loads")
        salt = (1 << 33) + int(time.time())
        try:
            await run_probe(self._sender(writer.add, PROBE), found.targets, plans, prompts, salt)
        finally:
            writer.close()
            collect(folder)
        rows = read_table(part_path(folder, PROBE, "requests"), "requests")
        gone = rows.filter(pl.col("outcome").is_in([str(o) for o in GONE]))
        if len(gone) and (self.plan.on_failure == "stop" or 2 * len(gone) > len(rows)):
            raise EngineError(
                f"the engine was gone during the probe: {len(gone)} of {len(rows)} requests ended as "
                f"{gone['outcome'][0]}."
            )
        steps = steps_of(rows, [(one.name, one.ranks) for one in found.instances], PROBE)
        write_table(table_path(folder, "steps"), "steps", steps)
        failed = rows.filter(pl.col("finished_s").is_null())
        if len(failed):
            self.note(f"{len(failed)} of {len(rows)} requests of the probe failed.")
        if steps.is_empty():
            self.note("The probe shows no single step: the engine bundles tokens, or nothing was answered.")

    def _sender(self, keep: Callable[[RequestRow], None], name: str) -> Sender:
        plan, found = self.plan, self.found
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
            self.connections,
            engine=plan.engine,
            route=plan.route,
            model=found.model,
            timeout_s=plan.timeout_s,
            start_s=start_s,
            label=(name, 0, -1),
            done=keep,
            key=plan.worker_key,
        )
