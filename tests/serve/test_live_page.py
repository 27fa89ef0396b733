"""The live page's routes: the page, its stream, who may look; shadows end to end; the dashboard."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
import pytest
from serve_cases import mock, on_a_loop, stage

from equipoise.cost import load
from equipoise.engines import WorkerSpec
from equipoise.errors import EquipoiseError, InputError
from equipoise.serve.browser import _known
from equipoise.serve.grafana import dashboard, dashboard_text
from equipoise.serve.page.site import policy_of
from equipoise.serve.panels import ROWS
from equipoise.serve.prices import over_mean, priced
from equipoise.serve.shadows import shadow_list


async def events(answer, count):
    """So many messages of a stream."""
    found, rest = [], b""
    while len(found) < count:
        rest += await answer.content.readany()
        *whole, rest = rest.split(b"\n\n")
        for one in whole:
            lines = dict(line.split(b": ", 1) for line in one.split(b"\n"))
            assert lines[b"event"] == b"state"
            found.append(json.loads(lines[b"data"]))
            assert int(lines[b"id"]) == found[-1]["number"]
    return found


@on_a_loop
async def test_the_stream_says_what_the_ledger_says():
    async with stage(
        mock(manual=True, ranks=3), mock(ranks=2), policy="least_batch", shadows=("equipoise",)
    ) as s:
        s.service.site.feed.period_s = 0.05
        async with s.client.get(s.admin + "/ui/events") as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            (empty,) = await events(answer, 1)
            assert (empty["leases"], empty["decisions"], empty["shadows"]["samples"]) == (0, [], 0)
            assert [(one["name"], one["ranks"], one["running"]) for one in empty["instances"]] == [
                ("i0", 3, 0),
                ("i1", 2, 0),
            ]
            s.service.driver.drain(1)
            tasks = [asyncio.ensure_future(s.post(prompt=[1] * n).__aenter__()) for n in (30, 40, 50, 60)]
            await s.until(lambda: s.view().leases == 4)
            while True:
                (now,) = await events(answer, 1)
                if now["leases"] == 4:
                    break
            view, cost = s.view(), load("h200")
            ranks = now["ranks"]
            assert ranks["batch"] == view.batch.tolist()
            assert ranks["context"] == view.context_tokens.tolist()
            assert ranks["drained"] == [3, 4]
            first = now["instances"][0]
            B, C = view.batch[:3], view.context_tokens[:3]
            assert first["price"] == pytest.approx(float(cost.cost(B, C)), rel=1e-5)
            assert first["even"] == pytest.approx(float(cost.ideal(B, C)), rel=1e-5)
            assert (first["running"], first["tokens"]) == (4, 180)
            assert [one["context"] for one in now["decisions"]] == [60, 50, 40, 30]
            assert {one["worker"] for one in now["decisions"]} == {"i0"}
            (shadow,) = now["shadows"]["policies"]
            assert shadow["policy"] == "equipoise"
            assert shadow["same"] + shadow["other"] == 4
            assert now["number"] > empty["number"]
            assert now["boot"] == empty["boot"]
        await s.until(lambda: s.service.site.watchers == 0, "the watcher is let go")
        s.engine.step(10)
        for task in tasks:
            await (await task).read()


@on_a_loop
async def test_without_engines_it_says_which_are_missing():
    engine = mock(ranks=2)
    await engine.start()
    url = engine.url
    await engine.stop()
    async with stage(ready=False, workers=(WorkerSpec(url, instance="gone"),)) as s:
        await s.until(lambda: s.service.watch.problem("gone"))
        async with s.client.get(s.admin + "/ui/state") as answer:
            state = await answer.json()
        assert (state["instances"], state["ready"]) == ([], "no_instance")
        assert [one["name"] for one in state["unknown"]] == ["gone"]
        assert url in state["unknown"][0]["problem"]
        assert state["ranks"] == {"batch": [], "context": [], "capacity": [], "wait": [], "drained": []}


@on_a_loop
async def test_who_may_look():
    async with stage(mock(), admin_token="a-long-secret") as s:
        async with s.client.get(s.admin + "/ui") as answer:
            assert answer.status == 200
            text = await answer.text()
            assert answer.headers["Content-Security-Policy"] == policy_of(text)
            assert "a-long-secret" not in text
        for path in ("/ui/events", "/ui/state"):
            async with s.client.get(s.admin + path) as answer:
                assert answer.status == 401
        key = {"Authorization": "Bearer a-long-secret"}
        async with s.client.get(s.admin + "/ui/events", headers=key) as answer:
            assert len(await events(answer, 1)) == 1
        async with s.client.get(
            s.admin + "/ui/state", headers={**key, "Host": "router.example:29000"}
        ) as answer:
            assert answer.status == 200, "with a token any name will do"
        for path in ("/ui", "/ui/events"):
            async with s.client.get(s.url + path) as answer:
                assert answer.status == 404, "not on the main port"


@on_a_loop
async def test_other_peoples_pages_are_kept_out():
    async with stage(mock(ranks=2)) as s:
        body = json.dumps({"instance": "i0"})
        foreign = (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Host": "evil.example"},
            {"Host": "127.0.0.1.evil.example:29000"},
        )
        for headers in foreign:
            async with s.client.post(s.admin + "/drain", data=body, headers=headers) as answer:
                assert (answer.status, answer.headers["x-equipoise-reason"]) == (403, "foreign_page")
            async with s.client.get(s.admin + "/ui/events", headers=headers) as answer:
                assert answer.status == 403
        assert not s.view().drained.any()
        own = {"Origin": s.admin, "Sec-Fetch-Site": "same-origin"}
        async with s.client.post(s.admin + "/drain", data=body, headers=own) as answer:
            assert answer.status == 200
        async with s.client.get(s.admin + "/metrics", headers={"Host": "router:29000"}) as answer:
            assert answer.status == 200, "a scraper may use any name"


@pytest.mark.parametrize(
    ("host", "known"),
    [("127.0.0.1:29000", True), ("[::1]:29000", True), ("10.0.0.7", True), ("localhost", True), ("a.localhost:1", True),
     ("router.local", True), ("", True), ("router:29000", False), ("localhost.evil.example", False),
     ("[::1.evil", False)],
)  # fmt: skip
def test_hosts(host, known):
    assert _known(host, frozenset({"router.local"})) is known


@on_a_loop
async def test_watchers_are_counted():
    async with stage(mock()) as s:
        s.service.site.watchers = 64
        async with s.client.get(s.admin + "/ui/events") as answer:
            assert (answer.status, answer.headers["x-equipoise-reason"]) == (429, "watchers")
        assert s.service.site.watchers == 64
        s.service.site.watchers = 0
        answers = [await s.client.get(s.admin + "/ui/events") for _ in range(5)]
        assert s.service.site.watchers == 5
        for answer in answers:
            answer.close()
        await s.until(lambda: s.service.site.watchers == 0)


@on_a_loop
async def test_the_dashboard_shows_what_is_there():
    queries = [query for row in ROWS.values() for panel in row for query, _ in panel.queries]
    named = {name for query in queries for name in re.findall(r"equipoise_\w+", query)}
    async with stage(mock(ranks=2), shadows=("least_batch",)) as s:
        async with s.post() as answer:
            await answer.read()
        async with s.client.get(s.admin + "/metrics") as answer:
            text = await answer.text()
    there = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        there |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    assert len(named) > 30
    assert named <= there, named - there
    for query in queries:
        for left, right in ("()", "{}", "[]"):
            assert query.count(left) == query.count(right)
        for metric in re.findall(r"rate\((equipoise_\w+)", query):
            assert metric.endswith(("_total", "_bucket")), query


def test_the_dashboard_is_laid_out():
    found = dashboard()
    assert json.loads(dashboard_text()) == found
    panels = found["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    taken = set()
    for one in panels:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, one["title"]
        taken |= cells


def test_a_list_of_shadows():
    assert shadow_list(["least_batch, dualpath,z=1.2,average=current", "brh"]) == (
        "least_batch", "dualpath,z=1.2,average=current", "brh",
    )  # fmt: skip
    for bad in (
        ["least_batch", "least_batch"],
        ["nobody"],
        ["z=1.2"],
        [""],
        ["dualpath,z=x"],
        ["least_batch,"],
    ):
        with pytest.raises(EquipoiseError):
            shadow_list(bad)
    with pytest.raises(InputError, match="17 policies"):
        shadow_list([f"dualpath,z={1 + k / 100}" for k in range(17)])


@pytest.mark.parametrize("cost", ["h200", "v1", "glm-5.3:v2"])
def test_prices_of_instances_of_several_widths(cost):
    made, rng = load(cost), np.random.default_rng(4)
    widths = [3, 1, 3, 8]
    instance = np.repeat(np.arange(4), widths)
    B, C = rng.integers(0, 30, 15), rng.integers(0, 200_000, 15)
    C[B == 0] = 0
    K = np.minimum(B[:, None] * np.array(made.saturation_tokens, np.int64), C[:, None])
    found = priced(made, instance, B, C, K, 4)
    for i in range(4):
        own = instance == i
        assert found.price[i] == float(made.cost(B[own], C[own], K[own]))
        assert found.even[i] == float(made.ideal(B[own], C[own], K[own]))
        assert found.even[i] <= found.price[i] * (1 + 1e-12)
        assert found.wait[own][found.slowest[i]] == found.wait[own].min()
        assert 0 <= found.bubble[i] <= 1
        assert found.bubble[i] == pytest.approx(found.wait[own].mean())
    assert found.bubble[1] == 0, "one rank waits for nobody"
    assert over_mean(np.zeros(3, np.int64)) == 1.0
