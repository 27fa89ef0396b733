"""`equipoise live` on the command line: one line and an exit code for everything that cannot be."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="pip install 'equipoise[serve]'")

from equipoise.cli.app import main
from equipoise.testing.mock_engine import MockEngine

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ([], "--url and --trace and --output-dir not given", 2),
        (["--url", NOBODY], "--trace and --output-dir", 2),
        (["--url", "nonsense"], "the address 'nonsense'", 2),
        (["--url", "http://u:p@h:1"], "credentials", 2),
        (["--url", NOBODY, "--engine", "vlm"], "'vllm'", 2),
        (["--url", NOBODY, "--policies", "least_bach"], "'least_batch'", 2),
        (["--url", NOBODY, "--policies", "engine,engine"], "twice", 2),
        (["--url", NOBODY, "--cost", "nosuch"], "nosuch", 2),
        (["--url", NOBODY, "--token-ids", "5"], "no range of ids", 2),
        (["--url", NOBODY, "--scale", "nan"], "--scale", 2),
        (["--url", NOBODY, "--mode", "closed"], "--concurrency", 2),
        (["--url", NOBODY, "--repeats", "0"], "--repeats", 2),
        (["--url", NOBODY, "--prompt-scale", "-1"], "--prompt-scale", 2),
        (["--url", NOBODY, "--route", "/generate"], "--route", 2),
        (["--url", NOBODY], "did not answer", 1),
    ],
)
def test_one_line_says_what_is_wrong(
    arguments: list[str], words: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    more = ["--trace", "chat-short", "--output-dir", str(folder)] if len(arguments) > 2 or code == 1 else []
    if arguments[1:2] in (["nonsense"], ["http://u:p@h:1"]):
        more = ["--trace", "chat-short", "--output-dir", str(folder)]
    assert main(["live", *arguments, *more]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not folder.exists()


def test_nothing_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--resume", str(tmp_path)]) == 2
    assert main(["live", "--resume", str(tmp_path), "--url", NOBODY]) == 2
    (tmp_path / "run.json").write_text("{}")
    assert main(["live", "--resume", str(tmp_path)]) == 2
    assert main(["live", "--url", NOBODY, "--trace", "chat-short", "--output-dir", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 4
    assert "holds a live run already" in errors[3]


@pytest.fixture
def engine() -> Iterator[MockEngine]:
    """A mock engine on a loop and a thread of its own."""
    loop = asyncio.new_event_loop()
    mock = MockEngine("vllm", ranks=2, speed_up=50.0)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(mock.start(), loop).result(60)
    yield mock
    asyncio.run_coroutine_threadsafe(mock.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_run_its_failure_and_its_resumption(
    engine: MockEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "live"
    arguments = ["--trace", "chat-short", "--requests", "12", "--mode", "closed", "--concurrency", "4"]
    arguments += ["--prompt-scale", "0.05", "--output-scale", "0.02", "--no-probe", "--warmup", "0"]
    arguments += ["--policies", "least_batch,engine", "--repeats", "1", "--output-dir", str(folder)]
    engine.faults.add("status", count=1, status=429, rank=1)  # the pins of the preflight meet it
    assert main(["live", "--url", engine.url, *arguments]) == 1
    assert "a small request failed on rank 1" in capsys.readouterr().err
    assert main(["live", "--resume", str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["schema"] == "equipoise.live-runs/1"
    assert [(one["policy"], one["state"], one["answered"]) for one in document["runs"]] == [
        ("least_batch", "done", 12),
        ("engine", "done", 12),
    ]
    assert main(["live", "--resume", str(folder)]) == 0
    captured = capsys.readouterr()
    assert "least_batch" in captured.out
    assert all(len(line) <= 80 or str(folder) in line for line in captured.out.splitlines())
