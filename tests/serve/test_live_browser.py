"""The live page in a real browser: what it shows, how it looks, what it does when the router goes away."""

from __future__ import annotations

import asyncio
import contextlib
import time

import numpy as np
import pytest
from browser_rig import browser
from serve_cases import on_a_loop

from equipoise.cost import load
from equipoise.router import Arrival, InstanceSpec, RankReport, Router, Settings
from equipoise.serve.admin import guarded
from equipoise.serve.driver import Driver
from equipoise.serve.edge import Edge, Limits
from equipoise.serve.page import PAGE, Feed, Site
from equipoise.serve.public import Public
from equipoise.serve.settings import Forwarding
from equipoise.serve.tally import Tally

pytestmark = pytest.mark.proof

FITS = "document.documentElement.scrollWidth <= innerWidth"
LIVE = "document.getElementById('link').textContent === 'live'"
CARDS = "document.querySelectorAll('#instances article').length"
CONTRAST = """(() => {
  const light = (text) => { const c = text.match(/[\\d.]+/g).map(Number);
    const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return [0.2126 * r + 0.7152 * g + 0.0722 * b, c.length > 3 ? c[3] : 1]; };
  const worst = {ratio: 99};
  for (const node of document.querySelectorAll("body *")) {
    if (![...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!node.offsetParent && getComputedStyle(node).position !== "fixed") continue;
    let under = node, back = 0;
    for (; under; under = under.parentElement) {
      const [value, alpha] = light(getComputedStyle(under).backgroundColor);
      if (alpha === 1) { back = value; break; }
    }
    const [ink] = light(getComputedStyle(node).color);
    const ratio = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
    if (ratio < worst.ratio) Object.assign(worst, {ratio, text: node.textContent.slice(0, 60)});
  }
  return worst;
})()"""


class Stand:
    """A router without engines behind the page's routes."""

    def __init__(
        self, widths, *, policy="least_batch", shadows=("equipoise", "dualpath,z=1.2"), token=None, port=0
    ):
        specs = [InstanceSpec(f"node-{i}", width, 400_000) for i, width in enumerate(widths)]
        self.driver = Driver(
            Router(specs, policy, load("v1"), Settings(settle_s=0.0, reports="none"), shadows=shadows),
            timers=False,
        )
        public = Public(self.driver, None, Forwarding(), {}, lambda name: "")
        info = {"policy": policy, "cost": "v1", "engine": "mock"}
        self.site = Site(Feed(self.driver, Tally(), public, info, list, period_s=0.1))
        self.edge = Edge(guarded(self.site.routes(), token, frozenset({PAGE})), Limits())
        self.port, self.rng, self.leases = port, np.random.default_rng(5), []

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self.edge, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error):
        self.server.close()
        self.edge.pre_shutdown()
        await self.edge.shutdown(0.1)
        self.driver.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/ui"

    async def fill(self, requests):
        """Place requests, with tokens under way."""
        names = [f"r{time.monotonic_ns()}-{k}" for k in range(requests)]
        lengths = np.minimum(self.rng.pareto(1.1, requests) * 2_000 + 100, 90_000).astype(int)
        arrivals = [Arrival(name, int(length)) for name, length in zip(names, lengths, strict=True)]
        leases = await asyncio.gather(*map(self.driver.place, arrivals))
        for lease in leases:
            lease.tokens(int(self.rng.integers(1, 500)))
        self.leases += leases
        router, now_s = self.driver.router, self.driver.now_s()
        view = router.view(now_s)
        self.driver.report(
            RankReport(int(i), int(r), int(b), 0, int(c), taken_at_s=now_s)
            for i, r, b, c in zip(view.instance, view.rank, view.batch, view.context_tokens, strict=True)
        )


@on_a_loop
async def test_what_it_shows():
    async with Stand([8, 8]) as stand, browser() as tab:
        page = await tab(stand.url)
        await page.until(LIVE)
        assert await page.run(CARDS) == 2
        assert "idle" in await page.run("document.querySelector('#instances').innerText")
        assert "none yet" in await page.run("document.getElementById('decisions').innerText")
        await stand.fill(80)
        view = stand.driver.router.view()
        await page.until("document.getElementById('kpis').innerText.includes('80')")
        shown = await page.run(
            "[...document.querySelectorAll('article .batch .bar')].map((p) => p.getAttribute('d'))"
        )
        assert sum(d.count("M") for d in shown) == 16, "a bar for every rank"
        # bars are as high as the loads: of the first instance, its slowest rank drawn apart
        heights = {}
        for d in shown[:2]:
            for one in d.split("M")[1:]:
                left, rest = one.split(" ", 1)
                heights[int(float(left))] = 100 - float(rest.split("V")[1].split("h")[0])
        found = np.array([heights[r] for r in range(8)])
        assert found / found.max() == pytest.approx(view.batch[:8] / view.batch[:8].max(), abs=1e-3)
        assert await page.run("document.querySelectorAll('#rows tr').length") == 4
        rows = await page.run("document.getElementById('rows').innerText")
        assert "least_batch (serves)" in rows
        assert "dualpath z=1.2" in rows
        assert await page.run("document.querySelectorAll('#decisions tr').length") == 24
        # by keyboard
        await page.run("document.querySelector('.strips').focus()")
        await page.press("Home")
        await page.press("ArrowRight")
        said = await page.run("document.querySelector('.readout').textContent")
        assert said.startswith(f"rank 1: {view.batch[1]} requests, {view.context_tokens[1]:,} tokens")
        assert await page.run("document.querySelector('.strips').getAttribute('aria-valuetext')") == said
        await page.press("Escape")
        assert "slowest" in await page.run("document.querySelector('.readout').textContent")
        # as a table, that stays open as news comes
        await page.run("document.querySelector('details').open = true")
        await page.until("document.querySelectorAll('details tbody tr').length === 8")
        cells = await page.run(
            "[...document.querySelectorAll('details tbody td:nth-child(2)')].map((c) => c.textContent)"
        )
        assert cells == [str(b) for b in view.batch[:8]]
        # what a screen reader hears
        tree = await page.call("Accessibility.getFullAXTree")
        heard = {
            (n["role"]["value"], n.get("name", {}).get("value", ""))
            for n in tree["nodes"]
            if not n["ignored"]
        }
        assert any(role == "slider" and "slowest is rank" in name for role, name in heard)
        assert any(role in ("image", "img") and "least_batch (serves)" in name for role, name in heard)
        assert ("heading", "Last decisions") in heard
        # paused, it stays
        await page.run("document.getElementById('pause').click()")
        before = await page.run("document.getElementById('kpis').innerText")
        await stand.fill(40)
        number = stand.site.feed._number
        while stand.site.feed._number < number + 5:
            await asyncio.sleep(0.05)
        assert await page.run("document.getElementById('kpis').innerText") == before
        await page.run("document.getElementById('pause').click()")
        await page.until("document.getElementById('kpis').innerText.includes('120')")
        assert page.complaints == []
        assert {url.split("/ui")[0] for url in page.asked if not url.startswith("data:")} == {stand.url[:-3]}


@on_a_loop
async def test_how_it_looks():
    async with Stand([64] * 10) as large, Stand([64]) as small, Stand([8, 8]) as few, browser() as tab:
        for stand, requests in ((large, 4_000), (small, 900), (few, 100)):
            await stand.fill(requests)
        for name, stand, cards in (("640", large, 10), ("64", small, 1), ("16", few, 2)):
            page = await tab(stand.url)
            await page.until(LIVE)
            for width in (1280, 390):
                for dark in (False, True):
                    await page.look(width, dark=dark)
                    await page.until(
                        f"document.getElementById('rows').children.length === 4 && {CARDS} === {cards}"
                    )
                    assert await page.run(FITS), (name, width)
                    worst = await page.run(CONTRAST)
                    assert worst["ratio"] >= 4.5, (name, width, dark, worst)
                    await page.picture(f"{name}-{width}-{'dark' if dark else 'light'}")
            bars = "[...document.querySelectorAll('.batch .bar')].map((p) => p.getAttribute('d')).join('')"
            assert (await page.run(bars)).count("M") == cards * len(stand.driver.router.view().rank) / cards
            assert page.complaints == []


@on_a_loop
async def test_without_data_and_when_the_router_comes_back():
    async with browser() as tab, contextlib.AsyncExitStack() as stack:
        async with Stand([]) as empty:
            page = await tab(empty.url)
            await page.until(LIVE)
            assert "no engines yet" in await page.run("document.getElementById('notice').textContent")
            assert await page.run(FITS)
            await page.picture("empty")
            port = empty.port
        await page.until("document.getElementById('link').textContent === 'reconnecting'")
        await page.until("document.getElementById('notice').textContent.includes('does not answer')")
        again = await stack.enter_async_context(Stand([4], port=port))
        await again.fill(9)
        await page.until(LIVE)
        await page.until(f"{CARDS} === 1 && document.getElementById('notice').hidden")
        assert "9" in await page.run("document.getElementById('kpis').innerText")
        # the page's own complaints are about the time nobody was there, and nothing else
        assert all("ERR_" in words for words in page.complaints), page.complaints


@on_a_loop
async def test_it_asks_for_the_token():
    async with Stand([4], token="a-long-secret") as stand, browser() as tab:
        page = await tab(stand.url, 390)
        await page.until("!document.getElementById('ask').hidden")
        assert await page.run("document.activeElement.id") == "token"
        give = "document.getElementById('token').value = '{}'; document.getElementById('key').requestSubmit()"
        await page.run(give.format("wrong"))
        await page.until("!document.getElementById('wrong').hidden")
        assert await page.run(FITS)
        await page.picture("token")
        await page.run(give.format("a-long-secret"))
        await page.until(LIVE)
        assert await page.run("document.getElementById('ask').hidden")
        await page.call("Page.reload")
        await page.until(LIVE)  # it is kept for this tab
        assert all("401" in words for words in page.complaints), page.complaints
