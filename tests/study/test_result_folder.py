"""The result folder: all of a study or nothing of it, however the command ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise._interrupts import Stopped, held_back, stop_on_signals
from equipoise.study import folder as folders

SIGNALS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def stopping() -> Iterator[None]:
    # Whoever started the tests may have had them ignored, as nohup does.
    before = {s: signal.signal(s, signal.SIG_DFL) for s in SIGNALS}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    stop_on_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


COMPARE = """
import sys, time
from pathlib import Path
import equipoise.report
from equipoise.cli.app import main

def write_report(comparison, stage):
    print("writing", flush=True)
    time.sleep(60)

equipoise.report.write_report = write_report
sys.argv = ["equipoise", "compare", "--trace", "chat-short", "--ranks", "2", "--concurrency", "8", "--requests", "300",
            "--seeds", "1", "--cost", "v1", "--policy", "A", "--quiet", "--output-dir", sys.argv[1]]
sys.exit(main())
"""


@pytest.mark.parametrize("number", SIGNALS, ids=lambda s: s.name)
def test_a_command_that_is_told_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", COMPARE, str(tmp_path / "out")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert [p.name[:5] for p in tmp_path.iterdir()] == [".out-"]
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err.startswith("equipoise: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop_on_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("stopping")
@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGINT])
def test_files_are_moved_all_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    move = os.replace

    def told_to_end(source: Path, target: Path) -> None:
        move(source, target)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(os, "replace", told_to_end)
    with pytest.raises(KeyboardInterrupt), folders.staged(tmp_path / "out") as stage:  # noqa: PT012
        for name in "abc":
            (stage / name).write_text(name)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b", "c", "out"]


@pytest.mark.usefixtures("stopping")
def test_a_second_signal_does_not_stop_the_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree

    def told_again(path: Path, ignore_errors: bool) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", told_again)
    with pytest.raises(Stopped), folders.staged(tmp_path / "out") as stage:  # noqa: PT012
        (stage / "a").write_text("a")
        raise Stopped(signal.SIGTERM)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("stopping")
def test_what_is_held_back_comes_after_the_block_and_handlers_return() -> None:
    handlers = [signal.getsignal(s) for s in (*SIGNALS, signal.SIGINT)]
    done = False
    with pytest.raises(Stopped) as caught, held_back():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # a chance to rise here
        done = True
    assert done
    assert caught.value.exit_code == 143
    assert [signal.getsignal(s) for s in (*SIGNALS, signal.SIGINT)] == handlers
