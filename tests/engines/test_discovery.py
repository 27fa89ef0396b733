"""Which workers there are: lists, files, DNS, and what is kept when a source fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.engines import (
    Change,
    DnsName,
    Members,
    StaticList,
    WatchedFile,
    WorkerSpec,
    parse_workers,
    watch,
)
from equipoise.engines.watchers import SystemResolver
from equipoise.engines.workers import parse_address
from equipoise.errors import EngineError, InputError

A, B, C = (WorkerSpec(f"http://{h}:8000") for h in "abc")


@settings(max_examples=200)
@given(st.lists(st.sets(st.sampled_from([A, B, C])) | st.none(), max_size=12), st.booleans())
def test_changes_add_up_to_the_list(answers: list[set[WorkerSpec] | None], keep: bool) -> None:
    members = Members(keep_last=keep)
    known: set[WorkerSpec] = set()
    for now, answer in enumerate(answers):
        change = members.failed("down") if answer is None else members.answered(float(now), answer)
        assert not set(change.added) & known
        assert set(change.removed) <= known
        known = (known | set(change.added)) - set(change.removed)
        assert set(members.workers) == known
        if answer is None or (not answer and keep and known):
            assert not change
            assert change.problem == members.problem != ""
        else:
            assert known == answer


def test_missing_for_a_while() -> None:
    members = Members(missing_for_s=30.0)
    members.answered(0.0, [A, B])
    assert not members.answered(10.0, [A])
    assert not members.answered(20.0, [A, B])  # back: the wait starts anew
    assert not members.answered(30.0, [A])
    assert not members.answered(59.0, [A])
    assert members.answered(60.0, [A]).removed == (B,)


def test_other_options_replace_at_once() -> None:
    members = Members(missing_for_s=30.0)
    members.answered(0.0, [A])
    more = WorkerSpec(A.url, ranks=8)
    assert members.answered(1.0, [more]) == Change((more,), (A,))


LINES = "http://a:1 engine=vllm ranks=8  # first\n\n# nothing\nhttp://b:2@3 instance=one\n"
TOML = """# workers
[[workers]]
url = "http://a:1"
engine = "vllm"
ranks = 8
[[workers]]
url = "http://b:2"
first_rank = 3
ranks = 1
instance = "one"
"""
ROWS = [
    "http://a:1 engine=vllm ranks=8",
    {"url": "http://b:2/", "first_rank": 3, "ranks": 1, "instance": "one"},
]
JSON = json.dumps(ROWS)
INLINE = f"workers = {json.dumps(['http://a:1 engine=vllm ranks=8', 'http://b:2@3 instance=one'])}"


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        TOML,
        JSON,
        f'{{"workers": {JSON}}}',
        INLINE,
    ],
)
def test_one_list_in_every_form(text: str) -> None:
    assert parse_workers(text) == (
        WorkerSpec("http://a:1", "vllm", 8),
        WorkerSpec("http://b:2", ranks=1, instance="one", first_rank=3),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://a:1 rank=8", "unknown key 'rank'"),
        ("http://a:1 ranks", "no option"),
        ("http://a:1 ranks=x", "ranks = 'x'"),
        ("http://a:1\nhttp://a:1", "twice"),
        ("ftp://a:1", "address"),
        ("[[workers]]\nranks = 1", "without url"),
        ("[[workers]]\nurl = 1", "no text"),
        ("[[workers]\n", "JSON"),
        ('{"worker": []}', "unknown key 'worker'"),
        ('{"workers": 3}', "no list"),
        ("[3]", "no worker"),
        ("http://a:1 instance=a%b", "instance"),
    ],
)
def test_what_is_wrong_in_a_list(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_workers(text, "list")


@pytest.mark.parametrize(
    "text",
    [
        "http://a:1/x",
        "http://a:1?x",
        "http://u:p@a:1",
        "a:1",
        "//a:1",
        "http://",
        "http://a:99999",
        "http://a:0",
        "http://a b:1",
        "http://a:1\r\nHost: b",
        "http://é:1",
        "file:///etc/passwd",
    ],
)
def test_addresses_that_could_steer_a_request(text: str) -> None:
    with pytest.raises(InputError, match="address"):
        parse_address(text)


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    with contextlib.suppress(InputError):
        parse_workers(text)


def test_a_file_that_goes_bad_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "workers.txt"
    source = WatchedFile(path)
    poll = lambda now: asyncio.run(source.poll(now))  # noqa: E731
    assert "cannot be read" in poll(0.0).problem
    put(path, "http://a:8000\n")
    assert poll(1.0).added == (A,)
    assert poll(2.0) == Change()  # not read again
    put(path, "http://a:8000\nhttp://b:8000\n")
    assert poll(3.0).added == (B,)
    for bad in ("http://a:8000 nonsense\n", "", "\n \n"):
        put(path, bad)
        assert poll(4.0).problem
        assert poll(5.0).problem  # still bad
        assert source.members.workers == (A, B)
    path.unlink()
    assert "cannot be read" in poll(6.0).problem
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in poll(7.0).problem
    put(path, "http://b:8000\n")
    assert poll(8.0) == Change(removed=(A,))
    put(path, "[]")
    assert poll(9.0) == Change(removed=(B,))  # said, not lost


def put(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


class Fake:
    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def _next(self) -> list[object]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    async def addresses(self, host: str) -> list[str]:
        assert host == "decode.example"
        return self._next()  # type: ignore[return-value]

    async def services(self, name: str) -> list[tuple[str, int]]:
        assert name == "_http._tcp.example"
        return self._next()  # type: ignore[return-value]


def test_addresses_of_a_name() -> None:
    resolver = Fake(["10.0.0.2", "fd00::1"], EngineError("NXDOMAIN."), [], ["10.0.0.2"], ["10.0.0.2"])
    source = DnsName("decode.example", 8000, WorkerSpec("http://x", "vllm", 8), resolver=resolver)
    poll = lambda now: asyncio.run(source.poll(now))  # noqa: E731
    six, four = WorkerSpec("http://[fd00::1]:8000", "vllm", 8), WorkerSpec("http://10.0.0.2:8000", "vllm", 8)
    assert set(poll(0.0).added) == {four, six}
    assert poll(1.0).problem == "NXDOMAIN."
    assert "no worker" in poll(2.0).problem
    assert not poll(3.0)
    assert poll(40.0).removed == (six,)


def test_services_of_a_name() -> None:
    source = DnsName("_http._tcp.example", None, resolver=Fake([("a", 8000), ("b", 8000)]))
    assert asyncio.run(source.poll(0.0)).added == (A, B)


def test_the_systems_resolver() -> None:
    assert "127.0.0.1" in asyncio.run(SystemResolver().addresses("127.0.0.1"))
    with pytest.raises(EngineError, match="does not resolve"):
        asyncio.run(SystemResolver().addresses("no-such-host.invalid"))


def test_watch_tells_changes_and_new_problems_once() -> None:
    source = DnsName(
        "decode.example",
        8000,
        resolver=Fake(["10.0.0.1"], ["10.0.0.1"], *[EngineError("gone.")] * 3, ["10.0.0.1", "10.0.0.2"]),
        missing_for_s=0,
    )

    async def collect() -> list[Change]:
        seen: list[Change] = []
        ticks = iter(range(100))

        async def sleep(_: float) -> None:
            await asyncio.sleep(0)

        async for change in watch(source, 1.0, clock=lambda: float(next(ticks)), sleep=sleep):
            seen.append(change)
            if len(seen) == 3:
                return seen
        raise AssertionError

    first, problem, second = asyncio.run(collect())
    assert [w.url for w in first.added] == ["http://10.0.0.1:8000"]
    assert problem.problem == "gone."
    assert [w.url for w in second.added] == ["http://10.0.0.2:8000"]


def test_a_static_list() -> None:
    source = StaticList([A, B])
    assert asyncio.run(source.poll(0.0)).added == (A, B)
    assert asyncio.run(source.poll(1.0)) == Change()
