"""Runs a service as a process: event loop, signals, what is said at the start, and a check without serving."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp

from equipoise.engines import Client, DnsName, WatchedFile
from equipoise.engines.watchers import Watcher
from equipoise.errors import EngineError, InputError
from equipoise.serve.config import ServeConfig
from equipoise.serve.replicas.join import check_store
from equipoise.serve.service import Service
from equipoise.serve.sockets import host_port
from equipoise.serve.targets import Target, targets_of

__all__ = ["check", "run", "settle_collector"]

_log = logging.getLogger("equipoise.serve")

Say = Callable[[str], None]


def settle_collector() -> None:
    """Take what is loaded by now out of Python's garbage collection.

    The compiled kernels bring some hundred thousand objects that stay for ever; to look through them again and again
    cost a third of the CPU of a request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def run(config: ServeConfig, say: Say, make: Callable[[ServeConfig], Service] = Service) -> int:
    """Serve until a signal ends it; the exit code.

    SIGTERM and SIGINT drain: no new requests, those under way may end within ``drain_s``, the rest is stopped. A second
    one stops them at once. SIGHUP reads the list of workers anew.
    """
    return _loop()(_serve(config, say, make))


def check(config: ServeConfig, say: Say) -> int:
    """Say whether it would work: every engine is asked once. The exit code: 0 yes, 1 no."""
    return _loop()(_check(config, say))


def _loop() -> Callable[[Coroutine[Any, Any, int]], int]:
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run
    return uvloop.run


async def _serve(config: ServeConfig, say: Say, make: Callable[[ServeConfig], Service]) -> int:
    service = make(config)
    loop = asyncio.get_running_loop()
    ending, now = asyncio.Event(), asyncio.Event()

    def end() -> None:
        if ending.is_set():
            now.set()
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    tasks: set[asyncio.Task[Any]] = set()

    def reload() -> None:
        task = loop.create_task(service.reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, reload)
    started = asyncio.ensure_future(service.start())
    await asyncio.wait(
        {started, (waits := asyncio.ensure_future(ending.wait()))}, return_when="FIRST_COMPLETED"
    )
    if not started.done():  # told to end while the kernels were being compiled
        say("ended before it began")
        return 0
    started.result()
    settle_collector()
    for line in summary(service):
        say(line)
    await waits
    say(f"draining: up to {config.drain_s:g} s for {service.under_way} requests under way")
    drain = asyncio.ensure_future(service.drain())
    at_once = asyncio.ensure_future(now.wait())
    await asyncio.wait({drain, at_once}, return_when="FIRST_COMPLETED")
    at_once.cancel()
    if not drain.done():
        drain.cancel()
        say("stopping at once")
        await service.stop_streams()
    await service.close()
    say("ended")
    return 0


def summary(service: Service) -> list[str]:
    """What a person wants to know at the start."""
    config = service.config
    urls = [t.url for t in service.workers.targets.values()]
    shown = ", ".join(urls[:4]) + (f" and {len(urls) - 4} more" if len(urls) > 4 else "")
    sources = [s for s in (config.workers_file, config.workers_dns) if s]
    ranks = config.dp_size or "as the engine says"
    lines = [
        f"serving on http://{_shown(config.host)}:{service.port}"
        f"{' (key needed)' if config.api_key else ''}"
        f"{', decision API included' if config.decide else ''}",
        f"admin and metrics on http://{_shown(config.admin_host)}:{service.admin_port}"
        f"{' (token needed)' if config.admin_token else ''}, a live page at /ui",
        f"policy {service.policy.label}, cost {config.cost}"
        + (f"; looking on: {'; '.join(config.shadows)}" if config.shadows else ""),
        f"engines {config.engine}, ranks {ranks}: {shown or 'none yet'}"
        + (f"; watching {', '.join(sources)}" if sources else ""),
        f"queue up to {config.router.max_queued_requests} requests for {config.router.queue_ttl_s:g} s;"
        f" first byte within {config.timeouts.first_byte_s:g} s, {config.forwarding.retries} retries",
    ]
    lines += service.also()
    if config.decision_log:
        lines.append(f"decisions go to {config.decision_log}")
    return lines


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _check(config: ServeConfig, say: Say) -> int:
    good = True
    for where, problem in [(n, p) for n, p in await _listed(config, say)]:
        if problem:
            say(f"FAIL  {where}: {problem}")
            good = False
    if config.replicas.on:
        problem = await check_store(config.replicas)
        say(f"{'FAIL' if problem else 'ok  '}  {config.replicas.shown}: {problem or 'it answers'}")
        good = good and not problem
    workers = config.workers
    sources: list[Watcher] = []
    if config.workers_file:
        sources.append(WatchedFile(config.workers_file))
    if config.workers_dns:
        sources.append(DnsName(*host_port(config.workers_dns)))
    for source in sources:
        await source.poll(0.0)
        workers += source.members.workers
    targets = targets_of(workers, config.engine, config.dp_size)
    async with aiohttp.ClientSession() as session:
        for target in targets:
            good = await _look(config, session, target, say) and good
    say("ready to serve" if good and targets else "not ready to serve")
    return 0 if good and targets else 1


async def _listed(config: ServeConfig, say: Say) -> list[tuple[str, str]]:
    """Whether the sources of workers can be read."""
    found = []
    if config.workers_file:
        change = await WatchedFile(config.workers_file).poll(0.0)
        found.append((config.workers_file, change.problem))
    if config.workers_dns:
        change = await DnsName(*host_port(config.workers_dns)).poll(0.0)
        found.append((config.workers_dns, change.problem))
    return found


async def _look(config: ServeConfig, session: aiohttp.ClientSession, target: Target, say: Say) -> bool:
    """Ask one instance: does it answer, has it the ranks it was said to have, does it tell its capacity?"""
    key = config.forwarding.key_of(target.name)
    headers = {"Authorization": f"Bearer {key}"} if key else None
    client = Client(session, timeout_s=config.polling.timeout_s, headers=headers)
    for node in target.nodes:
        url = node.engine.urls[0]
        try:
            seen = await client.observe(node.engine, node.adapter)
            loads = [load for one in seen for load in one.ranks]
            notes = [note for one in seen for note in one.notes]
        except (EngineError, InputError) as error:
            say(f"FAIL  {url}: {error}")
            return False
        found = len({load.rank for load in loads})
        if node.sized and found not in (node.engine.ranks, 0):
            say(f"FAIL  {url}: it has {found} ranks, and {node.engine.ranks} were configured (--dp-size)")
            return False
        capacities = {load.kv_capacity_tokens for load in loads}
        known = next(iter(capacities)) if len(capacities) == 1 else None
        capacity = f"{known:,} KV tokens each" if known else "KV capacity not told"
        if not known and config.kv_capacity_tokens is None:
            notes.append(
                "its KV capacity is not known: give --kv-capacity-tokens, or prompts may overflow it"
            )
        say(f"ok    {url}: {node.engine.kind}, {found or node.engine.ranks} ranks, {capacity}")
        for note in notes:
            say(f"      note: {note}")
    return True


def to_stderr(line: str) -> None:
    """Say something to whoever started the process."""
    print(line, file=sys.stderr, flush=True)
