"""Who runs the jobs: threads of this process, or a cluster; all take the same batches and give the same runs.

What happens to a job that fails is the same too. An error that is not the input's fault (no memory, a full disk) may
not come again: the job is run again, up to `TRIES` times. One that fails for good is reported; without a checkpoint it
ends the study at once, with one the other jobs are finished and kept first, and the same command runs what is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from equipoise.errors import EngineError, EquipoiseError, InputError
from equipoise.study.checkpoint import Checkpoint
from equipoise.study.jobs import Batch, Job, Run, run_job
from equipoise.study.workloads import load_source
from equipoise.traces.trace import Trace

__all__ = ["TRIES", "Failure", "Runner", "Sources", "attempt", "threads", "verdict"]

Runner = Callable[[Sequence[Batch], Callable[[], None]], Iterator[list[Run]]]
"""Takes batches and a function to call after every job; gives the runs of each batch, in the order of its jobs."""

TRIES = 3
"""Times a job is run before it counts as failed."""
NAMED = 3
"""Failures that a message names."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed for good."""

    job: Job
    error: BaseException

    def words(self) -> str:
        """The cell and what went wrong, in one clause."""
        setting = self.job.setting
        where = f"{setting.trace}, {setting.cost.name}"
        if setting.deployment_name is not None:
            where += f", {setting.deployment_name}"
        reason = next(iter(str(self.error).splitlines()), type(self.error).__name__)
        return f"{self.job.policy.label} on {where}, seed {self.job.seed}: {reason}"


class Sources:
    """Trace files, read once for all the seeds that follow one another."""

    def __init__(self) -> None:
        self._source: Trace | None = None
        self._name: str | None = None

    def draw(self, batch: Batch) -> Trace:
        """The requests of a batch."""
        if self._name != batch.trace:
            self._source, self._name = load_source(batch.trace), batch.trace
        return batch.draw(self._source)


def attempt(job: Job, trace: Trace) -> Run:
    """Run a job, again where what went wrong may not go wrong again; our own errors are certain to."""
    for _ in range(TRIES - 1):
        try:
            return run_job(job, trace)
        except EquipoiseError:
            raise
        except Exception:
            continue
    return run_job(job, trace)


def verdict(failures: Sequence[Failure], checkpoint: Checkpoint | None, runs: int) -> BaseException:
    """One error for all that failed.

    Parameters
    ----------
    failures : sequence of Failure
    checkpoint : Checkpoint, optional
    runs : int
        Runs that are done, those kept earlier included.
    """
    first = failures[0].error
    if checkpoint is None or (runs == 0 and isinstance(first, InputError)):
        return first
    named = "; ".join(f.words() for f in failures[:NAMED])
    more = f"; and {len(failures) - NAMED} more" if len(failures) > NAMED else ""
    return EngineError(
        f"{len(failures)} runs failed, the others are kept in {str(checkpoint.folder)!r}: run the same command again "
        f"to retry. Failed: {named}{more}"
    )


def threads(jobs: int, checkpoint: Checkpoint | None = None) -> Runner:
    """A runner with so many replays at a time; the kernel releases the interpreter lock.

    What the checkpoint holds is not run again, and what is run is kept there. Without one, the first error of any job
    ends it; jobs that have not begun are not run.
    """

    def run(batches: Sequence[Batch], done: Callable[[], None]) -> Iterator[list[Run]]:
        stop = threading.Event()
        sources = Sources()
        failures: list[Failure] = []
        finished = 0

        def one(batch: Batch, job: Job, trace: Trace) -> Run | None:
            if stop.is_set():
                return None
            try:
                run = attempt(job, trace)
            except Exception as error:
                if checkpoint is None:
                    raise
                failures.append(Failure(job, error))
                return None
            if checkpoint is not None:
                checkpoint.save(batch, job, run)
            done()
            return run

        executor = ThreadPoolExecutor(max_workers=max(1, jobs))
        try:
            for batch in batches:
                runs = [checkpoint.load(batch, job) if checkpoint else None for job in batch.jobs]
                missing = [i for i, kept in enumerate(runs) if kept is None]
                for _ in range(len(runs) - len(missing)):
                    done()
                if missing:
                    trace = sources.draw(batch)
                    futures = {i: executor.submit(one, batch, batch.jobs[i], trace) for i in missing}
                    ended, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
                    for future in ended:
                        future.result()
                    for i, future in futures.items():
                        runs[i] = future.result()
                finished += sum(run is not None for run in runs)
                if not failures:
                    yield [run for run in runs if run is not None]
        except BaseException as error:
            stop.set()
            # A replay under way cannot be stopped from outside; whoever pressed Ctrl-C shall not wait for it.
            executor.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
            raise
        executor.shutdown()
        if failures:
            raise verdict(failures, checkpoint, finished)

    return run
