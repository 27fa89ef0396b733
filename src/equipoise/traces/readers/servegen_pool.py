"""ServeGen client pools read as a trace: one day drawn with seed 0 unless another seed is given.

Given the folder or either file of a pair; `equipoise.traces.servegen.generate` has the other options.
"""

from __future__ import annotations

from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.servegen import draw, load_pool, models
from equipoise.traces.trace import Trace

__all__ = ["FORMAT"]


def _sniff(head: Head) -> bool:
    if head.folder:
        return bool(models(head.path))
    return head.has("client", "t_start_s", "rate_rps", "pattern") or head.has(
        "client", "t_start_s", "field", "q50"
    )


def _read(job: Job) -> Trace:
    pool = load_pool(job.path, problems=job.problems)
    if pool.left_out > 0:
        job.problems.note(f"clients without length tables left out ({pool.left_out:.0%} of the requests)")
    job.problems.note(f"one day drawn from the pool with seed {job.seed}")
    return draw(pool, seed=job.seed)


FORMAT = Format(
    name="servegen",
    title="ServeGen client pools (pair of CSV files): a day is drawn from them",
    sniff=_sniff,
    read=_read,
    example="client,t_start_s,rate_rps,iat_cv,pattern,shape,scale\n0,3000,0.39,0.9137,Gamma,1.1977,2.0746",
    folder=True,
)
