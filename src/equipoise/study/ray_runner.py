"""A runner on a Ray cluster: the same jobs on many machines.

Requests are drawn here and put into the cluster once a batch, so a trace file need not be there; a policy file must be,
under the same path. A job that dies with its worker is tried again, as is one whose error may not come again
(`equipoise.study.runner`); one that fails for good is reported, with a checkpoint after the others are finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from equipoise.errors import EngineError, EquipoiseError, InputError
from equipoise.study.checkpoint import Checkpoint
from equipoise.study.jobs import Batch, Run
from equipoise.study.runner import Failure, Runner, Sources, attempt, verdict

__all__ = ["on_ray"]

TRIES = 3
"""Times a job is tried again when the worker that ran it died."""
AHEAD = 4
"""Jobs in the cluster at a time, over its processors: enough to keep it busy, few enough to keep few traces there."""


def on_ray(address: str | None, checkpoint: Checkpoint | None = None) -> Runner:
    """A runner on a cluster that is up.

    Parameters
    ----------
    address : str
        ``host:port`` of its head node, or ``auto`` on a machine that belongs to it. None is refused: a cluster that
        is started for a moment would listen on every interface of this machine.
    checkpoint : Checkpoint, optional

    Raises
    ------
    InputError
        No address, or Ray is not installed.
    EngineError
        The cluster does not answer, or jobs failed.
    """
    if not address:
        raise InputError(
            "no address of a cluster",
            where="--ray-address",
            fix="start one ('ray start --head') and give host:port",
        )
    ray = _ray()

    def run(batches: Sequence[Batch], done: Callable[[], None]) -> Iterator[list[Run]]:
        _connect(ray, address)
        try:
            yield from _Sweep(ray, batches, done, checkpoint).runs()
        finally:
            ray.shutdown()

    return run


class _Sweep:
    """The batches of a study on their way through the cluster."""

    def __init__(
        self, ray: Any, batches: Sequence[Batch], done: Callable[[], None], checkpoint: Checkpoint | None
    ) -> None:
        self._ray, self._done, self._checkpoint = ray, done, checkpoint
        self._remote = ray.remote(num_cpus=1, max_retries=TRIES)(attempt)
        self._most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._sources = Sources()
        self._waiting = deque(batches)
        self._open: deque[tuple[Batch, list[Run | Any]]] = deque()
        self._place_of: dict[Any, tuple[Batch, list[Run | Any], int]] = {}
        self._failures: list[Failure] = []
        self._finished = 0

    def runs(self) -> Iterator[list[Run]]:
        """The runs of each batch, in order."""
        while self._waiting or self._open:
            while self._waiting and len(self._place_of) < self._most:
                self._submit(self._waiting.popleft())
            while self._open and not any(ref in self._place_of for ref in self._open[0][1]):
                _, found = self._open.popleft()
                if not self._failures:
                    yield found
            if self._place_of:
                self._collect()
        if self._failures:
            raise self._verdict()

    def _submit(self, batch: Batch) -> None:
        found: list[Run | Any] = [
            self._checkpoint.load(batch, j) if self._checkpoint else None for j in batch.jobs
        ]
        missing = [i for i, kept in enumerate(found) if kept is None]
        for _ in range(len(found) - len(missing)):
            self._finished += 1
            self._done()
        if missing:
            trace = self._ray.put(self._sources.draw(batch))
            for i in missing:
                found[i] = self._remote.remote(batch.jobs[i], trace)
                self._place_of[found[i]] = (batch, found, i)
        self._open.append((batch, found))

    def _collect(self) -> None:
        """Take what is finished; remember what failed."""
        ready, _ = self._ray.wait(list(self._place_of), num_returns=1)
        for ref in ready:
            batch, found, i = self._place_of.pop(ref)
            try:
                found[i] = self._ray.get(ref)
            except Exception as error:
                self._failures.append(Failure(batch.jobs[i], getattr(error, "cause", None) or error))
                if self._checkpoint is None:
                    raise self._verdict() from error
                continue
            if self._checkpoint is not None:
                self._checkpoint.save(batch, batch.jobs[i], found[i])
            self._finished += 1
            self._done()

    def _verdict(self) -> BaseException:
        """One error for all that failed."""
        first = self._failures[0]
        if self._checkpoint is None and not isinstance(first.error, EquipoiseError):
            return EngineError(f"a job failed on the cluster: {first.words()}")
        return verdict(self._failures, self._checkpoint, self._finished)


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise EngineError(f"no Ray cluster answers at {address}: {type(error).__name__}: {reason}") from error


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("the ray runner needs Ray", fix="pip install 'equipoise[ray]'") from None
    return ray
