"""What the main port tells beside the data path: health, workers, loads, models, in the shapes users know."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import aiohttp
from aiohttp import web

from equipoise.router import InstanceState, RouterView
from equipoise.serve.answers import WORDS, json_answer, refusal
from equipoise.serve.driver import Driver
from equipoise.serve.settings import Forwarding
from equipoise.serve.targets import Target

__all__ = ["Public", "loads_of", "workers_of"]

SERVING = (InstanceState.UP.value, InstanceState.SLOW_START.value, InstanceState.HALF_OPEN.value)
MODELS_FOR_S = 5.0
"""How long a list of models is given out again."""
MOST_MODELS_BYTES = 4 << 20


def loads_of(view: RouterView, driver: Driver) -> list[dict[str, Any]]:
    """Loads of all ranks, with SGLang's names."""
    rows = []
    for r in range(len(view.rank)):
        i = int(view.instance[r])
        used, capacity = int(view.context_tokens[r]), int(view.capacity_tokens[r])
        age_s = float(view.report_age_s[r])
        rows.append(
            {
                "worker": view.instance_names[i],
                "dp_rank": int(view.rank[r]),
                "num_running_reqs": int(view.batch[r]),
                "num_used_tokens": used,
                "max_total_num_tokens": capacity if capacity >= 0 else None,
                "token_usage": round(used / capacity, 6) if capacity > 0 else None,
                "num_own_reqs": int(view.own_batch[r]),
                "num_own_tokens": int(view.own_context_tokens[r]),
                "free_tokens": int(view.free_tokens[r]),
                "drained": bool(view.drained[r]),
                "report_age_s": round(age_s, 3) if age_s < 1e9 else None,
            }
        )
    return rows


def workers_of(view: RouterView, driver: Driver, problem: Callable[[str], str]) -> list[dict[str, Any]]:
    """Every instance that this router places on, with its ranks."""
    workers = []
    owner = {"owner": driver.owners.name} if driver.owners is not None else {}
    for i, name in enumerate(view.instance_names):
        target: Target = driver.targets[i]
        own = view.instance == i
        workers.append(
            {
                "name": name,
                "url": target.url,
                "engine": target.nodes[0].engine.kind,
                "dp_size": target.ranks,
                "state": view.instance_states[i],
                "reason": view.instance_reasons[i],
                "problem": problem(name),
                "is_healthy": view.instance_states[i] in SERVING,
                "running": int(view.batch[own].sum()),
                "context_tokens": int(view.context_tokens[own].sum()),
                "step_price": float(view.step_price[i]),
                "drained_ranks": [int(r) for r in view.rank[own & view.drained]],
                "ranks": target.names(),
                **owner,
            }
        )
    return workers


class Public:
    """The handlers.

    Parameters
    ----------
    driver : Driver
    session : aiohttp.ClientSession
    forwarding : Forwarding
    info : dict
        What ``/server_info`` tells beside the pool: policy, cost, settings.
    problem : callable
        What is wrong with a target, in words.
    """

    def __init__(
        self,
        driver: Driver,
        session: aiohttp.ClientSession,
        forwarding: Forwarding,
        info: dict[str, Any],
        problem: Callable[[str], str],
    ) -> None:
        self.driver, self.session, self.forwarding = driver, session, forwarding
        self.info, self.problem = info, problem
        self.others: Callable[[], list[dict[str, Any]]] = list
        """Rows of the instances that other routers place on."""
        self.draining = False
        self._models: tuple[float, bytes] = (float("-inf"), b"")

    @property
    def ready(self) -> str:
        """Empty where requests can be served, else why not."""
        if self.draining:
            return "draining"
        view = self.driver.router.view()
        if any(state in SERVING for state in view.instance_states) or self.driver.elsewhere():
            return ""
        return "no_owner" if self.driver.owners is not None and not view.instance_states else "no_instance"

    async def live(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """The process answers."""
        return json_answer({"status": "alive"})

    async def health(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Requests can be served."""
        why = self.ready
        if why:
            return refusal(503, why, WORDS[why])
        return json_answer({"status": "ready", "rung": self.driver.router.rung.value})

    async def server_info(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """What this is."""
        specs, others = self.driver.router.instances, self.others()
        shared = self.driver.owners.info() if self.driver.owners is not None else {}
        return json_answer(
            {
                "router": "equipoise",
                "version": version("equipoise"),
                **shared,
                "dp_size": sum(spec.width for spec in specs) + sum(row["dp_size"] for row in others),
                "instances": len(specs) + len(others),
                "rung": self.driver.router.rung.value,
                **self.info,
            }
        )

    async def loads(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Loads of the ranks as the router knows them."""
        view = self.driver.router.view(self.driver.now_s())
        return json_answer(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": version("equipoise"),
                "rung": view.rung,
                "queued": view.queued_requests,
                "loads": loads_of(view, self.driver),
            }
        )

    async def workers(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """The instances and their ranks."""
        view = self.driver.router.view(self.driver.now_s())
        workers = workers_of(view, self.driver, self.problem) + self.others()
        return json_answer({"workers": workers, "total": len(workers)})

    async def models(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """The models of an instance that is up: all serve the same."""
        asked_s, body = self._models
        if time.monotonic() - asked_s < MODELS_FOR_S:
            return web.Response(body=body, content_type="application/json")
        view = self.driver.router.view()
        own = [self.driver.targets[i] for i, state in enumerate(view.instance_states) if state in SERVING]
        target: Target
        for target in [*own, *self.driver.elsewhere()]:
            headers = {}
            key = self.forwarding.key_of(target.name)
            if key is not None:
                headers["Authorization"] = f"Bearer {key}"
            elif self.forwarding.keep_authorization and "Authorization" in request.headers:
                headers["Authorization"] = request.headers["Authorization"]
            try:
                async with self.session.get(
                    f"{target.url}/v1/models",
                    headers=headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=5.0),
                ) as answer:
                    body = await answer.content.read(MOST_MODELS_BYTES)
                    if answer.status == 200:
                        if key is not None or "Authorization" not in headers:
                            self._models = (time.monotonic(), body)
                        return web.Response(body=body, content_type="application/json")
                    if answer.status in (401, 403):
                        return web.Response(body=body, status=answer.status, content_type="application/json")
            except (aiohttp.ClientError, OSError, TimeoutError):
                continue
        return refusal(503, "no_instance", "no engine lists its models now", retry_after_s=1)
