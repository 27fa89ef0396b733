"""An interrupted sweep goes on where it was and ends with the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.replay import Pool
from equipoise.study import ComparePlan, compare, runner, summarize, to_json
from equipoise.study.checkpoint import Checkpoint
from equipoise.study.folder import write_data
from equipoise.study.jobs import batches
from equipoise.study.runner import threads

PLAN = ComparePlan(
    traces=["chat-short"],
    costs=[load("v1"), load("h200")],
    policies=[parse(p) for p in ("least_batch", "dualpath,z=1.2")],
    pool=Pool(ranks=4),
    concurrency=32,
    requests=600,
    seeds=3,
)
JOBS = 12


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the jobs that were really run; the one whose turn it is fails if it is told to."""
    seen: list[int] = []
    run_job = runner.run_job

    def noted(job, trace):  # type: ignore[no-untyped-def]
        seen.append(job.seed)
        return run_job(job, trace)

    monkeypatch.setattr(runner, "run_job", noted)
    return seen


@pytest.mark.parametrize("mode", ["saturated", "timed"])
def test_what_is_kept_is_not_run_again_and_gives_the_same_bytes(
    mode: str, tmp_path: Path, replays: list[int]
) -> None:
    plan = replace(PLAN, mode=mode)
    fresh = compare(plan)
    assert len(replays) == JOBS
    kept = [compare(plan, runner=threads(2, Checkpoint(tmp_path / "kept"))) for _ in range(2)]
    assert len(replays) == 2 * JOBS
    assert {to_json(summarize(c)) for c in (fresh, *kept)} == {to_json(summarize(fresh))}
    for name, comparison in (("a", fresh), ("b", kept[1])):
        (tmp_path / name).mkdir()
        write_data(comparison, tmp_path / name)
    for file in ("steps.parquet", *(["requests.parquet"] if mode == "timed" else [])):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_an_interrupted_sweep_goes_on(
    tmp_path: Path, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = runner.run_job

    def until_the_second_seed(job, trace):  # type: ignore[no-untyped-def]
        if job.seed == 1:
            raise KeyboardInterrupt
        return noted(job, trace)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_job", until_the_second_seed)
        with pytest.raises(KeyboardInterrupt):
            compare(PLAN, runner=threads(1, Checkpoint(tmp_path)))
    assert replays == [0] * 4
    ticks: list[tuple[int, int]] = []
    resumed = compare(
        PLAN, runner=threads(1, Checkpoint(tmp_path)), progress=lambda n, of: ticks.append((n, of))
    )
    assert replays == [0] * 4 + [1] * 4 + [2] * 4
    assert ticks == [(n, JOBS) for n in range(1, JOBS + 1)]
    assert to_json(summarize(resumed)) == to_json(summarize(compare(PLAN)))


@pytest.mark.parametrize("harm", ["truncate json", "truncate npz", "remove npz", "other json"])
def test_damaged_files_are_run_again(harm: str, tmp_path: Path, replays: list[int]) -> None:
    compare(PLAN, runner=threads(1, Checkpoint(tmp_path)))
    before = len(replays)
    kind, suffix = harm.split()
    for path in tmp_path.glob(f"*.{suffix}"):
        if kind == "truncate":
            path.write_bytes(path.read_bytes()[:100])
        elif kind == "remove":
            path.unlink()
        else:
            path.write_text('{"measures": {}}')
    again = compare(PLAN, runner=threads(1, Checkpoint(tmp_path)))
    assert len(replays) - before == (JOBS if suffix == "json" else 4)  # arrays are kept of the first seed
    assert to_json(summarize(again)) == to_json(summarize(compare(PLAN)))


def test_whatever_a_run_depends_on_makes_it_another(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,9,8\n")
    own = tmp_path / "own.py"
    own.write_text("def pick(ranks, requests, i, prices, params, memory):\n    return 0\n")
    checkpoint = Checkpoint(tmp_path / "kept")

    def stems(plan: ComparePlan) -> set[Path]:
        return {checkpoint._stem(b, j) for b in batches(plan) for j in b.jobs}

    def mine() -> ComparePlan:
        return replace(PLAN, traces=[str(trace)], policies=[parse(f"{own}:pick")], seeds=1)

    seen = stems(mine())
    trace.write_text(trace.read_text() + "2023-11-16 18:17:04.0,9,8\n")
    assert seen.isdisjoint(stems(mine()))
    seen = stems(mine())
    own.write_text(own.read_text().replace("0", "1"))
    assert seen.isdisjoint(stems(mine()))
    plain = stems(PLAN)
    assert len(plain) == JOBS
    for changed in (
        {"mode": "timed"}, {"requests": 601}, {"concurrency": 33}, {"first_seed": 9}, {"warmup_turnovers": 2.0},
        {"costs": [load("v2")]}, {"pool": Pool(ranks=4, max_batch=99)}, {"policies": [parse("dualpath,z=1.2000001")]},
    ):  # fmt: skip
        assert plain.isdisjoint(stems(replace(PLAN, **changed)))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--checkpoint-dir: cannot make"):
        Checkpoint(tmp_path / "file" / "sub")
