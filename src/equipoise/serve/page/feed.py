"""`Feed`: the state of the router as one message, made once for all who watch.

A message is whole: a page that opens late, or misses some, is up to date with the next.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from equipoise.report.palette import Palette
from equipoise.router import RouterView
from equipoise.serve.driver import Driver
from equipoise.serve.prices import priced
from equipoise.serve.public import Public
from equipoise.serve.tally import Tally
from equipoise.serve.targets import Target

__all__ = ["MOST_RANKS", "Feed"]

SCHEMA = "equipoise.live/1"
MOST_RANKS = 8192
"""Ranks sent one by one; of a larger pool only its instances are."""
DECISIONS = 24
REASONS = 12
PERIOD_S = 1.0


class Feed:
    """Makes the messages.

    Parameters
    ----------
    driver : Driver
    tally : Tally
    public : Public
    info : dict of str to str
        ``policy``, ``cost`` and ``engine`` as they were configured.
    listed : callable
        All targets: those too whose ranks are not known yet, or that another router places on.
    period_s : float
        From one message to the next.
    """

    def __init__(
        self,
        driver: Driver,
        tally: Tally,
        public: Public,
        info: dict[str, Any],
        listed: Callable[[], Iterable[Target]],
        period_s: float = PERIOD_S,
    ) -> None:
        self.period_s = period_s
        self._driver, self._tally, self._public = driver, tally, public
        self._info, self._listed = info, listed
        self._boot, self._number = secrets.token_hex(6), 0
        self._encode = msgspec.json.Encoder().encode
        self._made: tuple[float, bytes] = (float("-inf"), b"")

    def event(self) -> bytes:
        """The latest message, as a server-sent event."""
        now_s = time.monotonic()
        if now_s - self._made[0] >= 0.9 * self.period_s:
            self._number += 1
            body = self._encode(self.state())
            self._made = (now_s, b"id: %d\nevent: state\ndata: %b\n\n" % (self._number, body))
        return self._made[1]

    def state(self) -> dict[str, Any]:
        """Everything the page shows."""
        driver, tally = self._driver, self._tally
        now_s = driver.now_s()
        view = driver.router.view(now_s)
        cost = driver.router.cost
        return {
            "schema": SCHEMA,
            "version": version("equipoise"),
            "boot": self._boot,
            "number": self._number,
            "at_s": round(now_s, 3),
            "time_s": round(time.time(), 3),
            "period_s": self.period_s,
            **self._info,
            "unit": cost.unit,
            "us_per_unit": cost.us_per_unit,
            "ready": self._public.ready,
            "rung": view.rung,
            "queue": {
                "requests": view.queued_requests,
                "tokens": view.queued_tokens,
                "classes": view.queued,
            },
            "leases": view.leases,
            "streams": tally.streams,
            "totals": {
                "arrived": view.counts["arrived"],
                "dispatched": view.counts["dispatched"],
                "finished": view.counts["finished"],
                "tokens": view.counts["tokens"],
                "rejected": sum(view.rejected.values()),
                "aborted": sum(view.aborted.values()),
                "policy_errors": view.counts["policy_errors"],
            },
            "rejected": _largest(view.rejected),
            "aborted": _largest(view.aborted),
            **self._loads(view),
            "decisions": self._decisions(now_s),
            "shadows": self._shadows(now_s),
        }

    def _loads(self, view: RouterView) -> dict[str, Any]:
        found = priced(
            self._driver.router.cost, view.instance, view.batch, view.context_tokens, view.saturated_tokens,
            len(view.instance_names),
        )  # fmt: skip
        rows, first = [], 0
        widths = np.bincount(view.instance, minlength=len(view.instance_names)).tolist()
        for i, (name, width) in enumerate(zip(view.instance_names, widths, strict=True)):
            own = slice(first, first + width)
            age_s = float(view.report_age_s[own].max(initial=0.0))
            rows.append(
                {
                    "name": name,
                    "first": first,
                    "ranks": width,
                    "state": view.instance_states[i],
                    "reason": view.instance_reasons[i],
                    "problem": self._public.problem(name)[:300],
                    "price": _round(found.price[i]),
                    "even": _round(found.even[i]),
                    "bubble": _round(found.bubble[i]),
                    "slowest": int(found.slowest[i]),
                    "running": int(view.batch[own].sum()),
                    "tokens": int(view.context_tokens[own].sum()),
                    "step_s": _round(view.step_s[i]),
                    "age_s": round(age_s, 3) if age_s < 1e9 else None,
                }
            )
            first += width
        known = set(view.instance_names)
        listed = [target for target in self._listed() if target.name not in known]
        unknown = [target.name for target in listed if not target.sized]
        ranks = None
        if len(view.rank) <= MOST_RANKS:
            ranks = {
                "batch": view.batch.tolist(),
                "context": view.context_tokens.tolist(),
                "capacity": view.capacity_tokens.tolist(),
                "wait": [round(share, 3) for share in found.wait.tolist()],
                "drained": np.flatnonzero(view.drained).tolist(),
            }
        return {
            "price": _round(found.price.sum()),
            "even": _round(found.even.sum()),
            "bubble": _round(float(np.average(found.bubble, weights=widths)) if first else 0.0),
            "instances": rows,
            "elsewhere": len(listed) - len(unknown),
            "unknown": [{"name": name, "problem": self._public.problem(name)[:300]} for name in unknown],
            "ranks": ranks,
        }

    def _decisions(self, now_s: float) -> list[dict[str, Any]]:
        router = self._driver.router
        names = [spec.name for spec in router.instances]
        rows = []
        for at_s, one in list(self._driver.tail)[::-1][:DECISIONS]:
            told = router.told(one.lease)
            rows.append(
                {
                    "ago_s": round(now_s - at_s, 3),
                    "id": one.request_id[:64],
                    "worker": names[one.instance] if one.instance < len(names) else "",
                    "rank": one.rank,
                    "reason": one.reason,
                    "context": None if told is None else told.context_tokens,
                }
            )
        return rows

    def _shadows(self, now_s: float) -> dict[str, Any]:
        router = self._driver.router
        samples, total = router.shadow_samples
        shadows = router.shadows(now_s)
        colours = Palette.of([router.policy.name, *(one.policy.partition(" ")[0] for one in shadows)]).colours
        rows, instance = [], router.view().instance
        for one in shadows:
            found = priced(
                router.cost, instance, one.batch, one.context_tokens, one.saturated_tokens,
                len(router.instances),
            )  # fmt: skip
            rows.append(
                {
                    "policy": one.policy,
                    "colour": colours[one.policy.partition(" ")[0]],
                    "price": _round(found.price.sum()),
                    "even": _round(found.even.sum()),
                    "mean_price": _round(one.price_sum / samples) if samples else None,
                    "same": one.same,
                    "other": one.other,
                    "wait": one.waits,
                }
            )
        return {
            "samples": samples,
            "mean_price": _round(total / samples) if samples else None,
            "errors": router.shadow_errors,
            "colour": colours[router.policy.name],
            "policies": rows,
        }


def _round(value: float) -> float:
    return float(f"{float(value):.6g}")


def _largest(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda one: -one[1])[:REASONS])
