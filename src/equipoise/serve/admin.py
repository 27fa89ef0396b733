"""The admin port: drain, look, reload, metrics. On loopback unless it is given a token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from aiohttp import web
from msgspec import Meta

from equipoise.serve.answers import WORDS, json_answer, refusal
from equipoise.serve.body import read_body
from equipoise.serve.driver import Driver
from equipoise.serve.edge import Handler, Routes
from equipoise.serve.exchange import Failure
from equipoise.serve.metrics import Metrics
from equipoise.serve.public import Public

Drain = Callable[[str, int | None, bool], Awaitable[int | None]]

__all__ = ["Admin", "guarded"]


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """What to drain."""

    instance: Annotated[str, Meta(min_length=1, max_length=256)]
    rank: Annotated[int, Meta(ge=0)] | None = None


def guarded(routes: Routes, token: str | None, free: frozenset[str] = frozenset()) -> Routes:
    """The same routes for those who know the token; without one, for all.

    Parameters
    ----------
    routes : mapping of str to mapping of str to handler
        Path to method to handler.
    token : str, optional
    free : frozenset of str
        Paths that need none.
    """
    if token is None:
        return routes
    expected = f"Bearer {token}".encode()

    def guard(handler: Handler) -> Handler:
        async def guarded_handler(request: web.BaseRequest, path: str) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, expected):
                return refusal(401, "key", "a key is needed: Authorization: Bearer ...", close=True)
            return await handler(request, path)

        return guarded_handler

    return {
        path: methods if path in free else {method: guard(h) for method, h in methods.items()}
        for path, methods in routes.items()
    }


class Admin:
    """The handlers.

    Parameters
    ----------
    driver : Driver
    public : Public
    metrics : Metrics
    reload : callable
        Reads the list of workers anew; what changed.
    """

    def __init__(
        self,
        driver: Driver,
        public: Public,
        metrics: Metrics,
        reload: Callable[[], Awaitable[dict[str, Any]]],
    ) -> None:
        self.driver, self.public, self.metrics, self._reload = driver, public, metrics, reload
        self.drain_elsewhere: Drain | None = None
        """Drains what other routers place on: name, rank, whether to undo it; requests that run there."""
        self._turn = msgspec.json.Decoder(Turn).decode

    def routes(self) -> Routes:
        """Path to method to handler."""
        return {
            "/health": {"GET": self.public.health},
            "/liveness": {"GET": self.public.live},
            "/metrics": {"GET": self.show_metrics},
            "/workers": {"GET": self.public.workers},
            "/v1/loads": {"GET": self.public.loads},
            "/server_info": {"GET": self.public.server_info},
            "/decisions": {"GET": self.decisions},
            "/leases": {"GET": self.leases},
            "/drain": {"POST": self.drain},
            "/undrain": {"POST": self.undrain},
            "/reload": {"POST": self.reload},
        }

    async def show_metrics(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Prometheus text."""
        return web.Response(body=self.metrics.page(), headers={"Content-Type": self.metrics.content_type})

    async def decisions(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """The last decisions, newest first; ``?n=`` of them."""
        n = _number(request, "n", 50)
        now_s = self.driver.now_s()
        names = [spec.name for spec in self.driver.router.instances]
        rows = [
            {
                "ago_s": round(now_s - at_s, 6),
                "request_id": one.request_id,
                "worker": names[one.instance] if one.instance < len(names) else "",
                "dp_rank": one.rank,
                "reason": one.reason,
            }
            for at_s, one in list(self.driver.tail)[::-1][:n]
        ]
        return json_answer({"decisions": rows})

    async def leases(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Leases that are held, oldest first; ``?n=`` of them."""
        n = _number(request, "n", 100)
        now_s = self.driver.now_s()
        rows = self.driver.router.snapshot()
        rows.sort(key=lambda row: float(row["dispatched_s"]))
        for row in rows[:n]:
            row["age_s"] = round(now_s - float(row.pop("dispatched_s")), 3)
        return json_answer({"total": len(rows), "leases": rows[:n]})

    async def drain(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Send nothing more to an instance or a rank."""
        return await self._turn_over(request, undo=False)

    async def undrain(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Send there again."""
        return await self._turn_over(request, undo=True)

    async def reload(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Read the list of workers anew."""
        return json_answer(await self._reload())

    async def _turn_over(self, request: web.BaseRequest, *, undo: bool) -> web.StreamResponse:
        try:
            turn = self._turn(await read_body(request, 64 << 10))
        except Failure as error:
            return refusal(error.status, error.reason, error.message, close=True)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return refusal(400, "bad_body", " ".join(str(error).split())[:300])
        if self.drain_elsewhere is not None:
            return await self._turn_anywhere(turn, self.drain_elsewhere, undo)
        i = self.driver.index(turn.instance)
        if i is None:
            return refusal(404, "no_instance", "no instance has that name; GET /workers lists them")
        width = self.driver.router.instances[i].width
        if turn.rank is not None and turn.rank >= width:
            return refusal(404, "no_rank", f"its ranks are 0 to {width - 1}")
        self.driver.drain(i, turn.rank, undo=undo)
        view = self.driver.router.view()
        mine = view.instance == i
        if turn.rank is not None:
            mine &= view.rank == turn.rank
        return json_answer(
            {"instance": turn.instance, "rank": turn.rank, "running": int(view.batch[mine].sum())}
        )

    async def _turn_anywhere(self, turn: Turn, drain: Drain, undo: bool) -> web.Response:
        """The same where instances have owners."""
        widths = {row["name"]: row["dp_size"] for row in self.public.others()}
        widths |= {spec.name: spec.width for spec in self.driver.router.instances}
        if turn.instance not in widths:
            return refusal(404, "no_instance", "no instance has that name; GET /workers lists them")
        if turn.rank is not None and turn.rank >= widths[turn.instance]:
            return refusal(404, "no_rank", f"its ranks are 0 to {widths[turn.instance] - 1}")
        running = await drain(turn.instance, turn.rank, undo)
        if running is None:
            return refusal(503, "owner_unreachable", WORDS["owner_unreachable"], retry_after_s=1.0)
        return json_answer({"instance": turn.instance, "rank": turn.rank, "running": running})


def _number(request: web.BaseRequest, name: str, default: int) -> int:
    values = parse_qs(request.raw_path.partition("?")[2]).get(name, [])
    text = values[0] if values else ""
    return min(int(text), 10_000) if text.isascii() and text.isdigit() and len(text) < 9 else default
