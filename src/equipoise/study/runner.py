"""Who runs the jobs: threads of this process. Another runner takes the same batches and gives the same runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from equipoise.study.jobs import Batch, Job, Run, run_job
from equipoise.study.workloads import load_source
from equipoise.traces.trace import Trace

__all__ = ["Runner", "threads"]

Runner = Callable[[Sequence[Batch], Callable[[], None]], Iterator[list[Run]]]
"""Takes batches and a function to call after every job; gives the runs of each batch, in the order of its jobs."""


def threads(jobs: int) -> Runner:
    """A runner with so many replays at a time; the kernel releases the interpreter lock.

    The first error of any job ends it; jobs that have not begun are not run.
    """

    def run(batches: Sequence[Batch], done: Callable[[], None]) -> Iterator[list[Run]]:
        stop = threading.Event()

        def one(job: Job, trace: Trace) -> Run | None:
            if stop.is_set():
                return None
            run = run_job(job, trace)
            done()
            return run

        executor = ThreadPoolExecutor(max_workers=max(1, jobs))
        source, source_of = None, None
        try:
            for batch in batches:
                if source_of != batch.trace:
                    source, source_of = load_source(batch.trace), batch.trace
                trace = batch.draw(source)
                futures = [executor.submit(one, job, trace) for job in batch.jobs]
                finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                yield [run for future in futures if (run := future.result()) is not None]
        except BaseException as error:
            stop.set()
            # A replay under way cannot be stopped from outside; whoever pressed Ctrl-C shall not wait for it.
            executor.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
            raise
        executor.shutdown()

    return run
