"""Who runs the jobs: threads of this process, or a cluster; all take the same batches and give the same runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from equipoise.study.checkpoint import Checkpoint
from equipoise.study.jobs import Batch, Job, Run, run_job
from equipoise.study.workloads import load_source
from equipoise.traces.trace import Trace

__all__ = ["Runner", "Sources", "threads"]

Runner = Callable[[Sequence[Batch], Callable[[], None]], Iterator[list[Run]]]
"""Takes batches and a function to call after every job; gives the runs of each batch, in the order of its jobs."""


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


def threads(jobs: int, checkpoint: Checkpoint | None = None) -> Runner:
    """A runner with so many replays at a time; the kernel releases the interpreter lock.

    What the checkpoint holds is not run again, and what is run is kept there. The first error of any job ends it; jobs
    that have not begun are not run.
    """

    def run(batches: Sequence[Batch], done: Callable[[], None]) -> Iterator[list[Run]]:
        stop = threading.Event()
        sources = Sources()

        def one(batch: Batch, job: Job, trace: Trace) -> Run | None:
            if stop.is_set():
                return None
            run = run_job(job, trace)
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
                    finished, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
                    for future in finished:
                        future.result()
                    for i, future in futures.items():
                        runs[i] = future.result()
                yield [run for run in runs if run is not None]
        except BaseException as error:
            stop.set()
            # A replay under way cannot be stopped from outside; whoever pressed Ctrl-C shall not wait for it.
            executor.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
            raise
        executor.shutdown()

    return run
