"""Asks engines over HTTP: a thin shell of aiohttp around the adapters. Needs the extra ``serve``."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from equipoise.engines.adapter import Adapter, Page, get
from equipoise.engines.numbering import Probe
from equipoise.engines.tls_words import tls_words
from equipoise.engines.types import EngineInstance, Observation
from equipoise.errors import EngineError

try:
    import aiohttp
except ImportError as missing:
    raise ImportError("talking to engines needs aiohttp: pip install 'equipoise[serve]'") from missing

__all__ = ["Client"]

T = TypeVar("T")

MAX_PAGE_BYTES = 64 << 20
"""A page of metrics of DP64 is a few megabytes."""


class Client:
    """Observes instances.

    Parameters
    ----------
    session : aiohttp.ClientSession
        The caller's, with its own limits on connections.
    timeout_s : float
        For each page as a whole.
    headers : mapping, optional
        For every request, such as an API key.
    """

    def __init__(
        self, session: aiohttp.ClientSession, *, timeout_s: float = 5.0, headers: dict[str, str] | None = None
    ) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._headers = headers or {}

    async def observe(
        self, instance: EngineInstance, adapter: Adapter | None = None
    ) -> tuple[Observation, ...]:
        """One look at every address of an instance: one observation, or with ``mode="port"`` one a rank.

        Raises
        ------
        EngineError
            An address did not answer, not with 200, or with something that cannot be read.
        """
        reads = adapter or get(instance.kind)
        metrics = instance.metrics_urls or instance.urls
        looks = [self._look(reads, url, metrics[i % len(metrics)]) for i, url in enumerate(instance.urls)]
        return tuple(await _together(looks))

    async def _look(self, adapter: Adapter, api: str, metrics: str) -> Observation:
        async def fetch(page: Page) -> tuple[str, bytes | None]:
            try:
                return page.name, await self.get((metrics if page.where == "metrics" else api) + page.path)
            except EngineError:
                if page.required:
                    raise
                return page.name, None

        pages = await _together([fetch(page) for page in adapter.pages])
        return adapter.read({name: data for name, data in pages if data is not None})

    async def get(self, url: str) -> bytes:
        """The body of a page.

        Raises
        ------
        EngineError
            No answer, another status than 200, or more than 64 MiB.
        """
        try:
            async with self._session.get(
                url, timeout=self._timeout, headers=self._headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise EngineError(f"{url} answered {response.status}.")
                data = bytearray()
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > MAX_PAGE_BYTES:
                        raise EngineError(f"{url} sent more than {MAX_PAGE_BYTES >> 20} MiB.")
                return bytes(data)
        except TimeoutError as error:
            raise EngineError(f"{url} did not answer within {self._timeout.total:g} s.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{url} did not answer ({_said(error)}).") from error

    async def probe(self, instance: EngineInstance, probe: Probe, model: str, now_s: float) -> None:
        """Find the numbering of a vLLM node by one request of one token, if the probe wants to know now."""
        number = probe.wanted(now_s)
        if number is None:
            return
        body = {"model": model, "prompt": "a", "max_tokens": 1}
        headers = {**self._headers, "X-data-parallel-rank": str(number)}
        try:
            async with self._session.post(
                instance.urls[0] + "/v1/completions",
                json=body,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                text = (await response.content.read(4096)).decode("utf-8", "replace")
                probe.answered(now_s, response.status, text)
        except (aiohttp.ClientError, OSError, TimeoutError):
            probe.answered(now_s, 0)
        except asyncio.CancelledError:
            probe.answered(now_s, 0)
            raise


async def _together(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first failure stops the others and is raised as it is."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _said(error: BaseException) -> str:
    return tls_words(error) or " ".join(str(error).split())[:120] or type(error).__name__
