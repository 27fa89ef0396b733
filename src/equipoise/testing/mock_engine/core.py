"""Ranks in lock-step, on a clock of their own: what a mock engine simulates; no sockets, no sleeping.

One step of the instance: at its start every rank admits waiting requests that fit; its length is the price of the
batches and contexts of all ranks; at its end every running request has one token more. A rank with nothing to do takes
part all the same, so a light rank is as slow as the heaviest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError

__all__ = ["Job", "LockStep", "State"]


class State(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Job:
    """One request on one rank.

    Parameters
    ----------
    rank : int
    prompt_tokens, output_tokens : int
        Its lengths.
    on_token : callable, optional
        Called with it at the end of every step it ran in; `state` says whether it is finished.
    """

    rank: int
    prompt_tokens: int
    output_tokens: int
    on_token: Callable[[Job], None] | None = None
    made: int = 0
    state: State = State.WAITING
    number: int = -1
    submitted_s: float = 0.0
    first_token_s: float = -1.0
    finished_s: float = -1.0

    @property
    def context_tokens(self) -> int:
        """Tokens it holds, or will hold when it starts again."""
        return self.prompt_tokens + self.made


class LockStep:
    """An instance.

    Parameters
    ----------
    ranks : int
    cost : StepCost
        What a step costs; its clock is turned into seconds.
    kv_capacity_tokens : int
        Tokens a rank holds.
    max_batch : int
        Requests a rank runs at once.
    prefill_us_per_token : float
        Added to a step for every prompt token that the busiest rank admits in it; 0: prompts come with their KV.
    """

    def __init__(
        self,
        ranks: int,
        cost: StepCost,
        *,
        kv_capacity_tokens: int = 1 << 20,
        max_batch: int = 256,
        prefill_us_per_token: float = 0.0,
    ) -> None:
        if ranks < 1 or kv_capacity_tokens < 2 or max_batch < 1:
            raise InputError(
                f"ranks = {ranks}, kv_capacity_tokens = {kv_capacity_tokens}, max_batch = {max_batch}",
                where="mock engine",
                fix="each must be at least 1, the capacity at least 2",
            )
        self.ranks = ranks
        self.kv_capacity_tokens = kv_capacity_tokens
        self.max_batch = max_batch
        self._cost = cost.in_us()
        self._prefill_us = prefill_us_per_token
        self.running: list[dict[int, Job]] = [{} for _ in range(ranks)]
        self.waiting: list[deque[Job]] = [deque() for _ in range(ranks)]
        self.held_tokens = np.zeros(ranks, dtype=np.int64)
        self.preempted = np.zeros(ranks, dtype=np.int64)
        self.generated = np.zeros(ranks, dtype=np.int64)
        self.prompted = np.zeros(ranks, dtype=np.int64)
        self.now_s = 0.0
        self.steps = 0
        self.last_step_s = 0.0
        self._numbers = 0
        self._stepping: list[Job] | None = None

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return any(self.running) or any(self.waiting)

    @property
    def batch(self) -> list[int]:
        """Running requests by rank."""
        return [len(jobs) for jobs in self.running]

    def submit(self, job: Job) -> None:
        """Queue a request on its rank.

        Raises
        ------
        InputError
            It can never fit there.
        """
        if job.prompt_tokens + job.output_tokens > self.kv_capacity_tokens:
            raise InputError(
                f"{job.prompt_tokens} prompt and {job.output_tokens} output tokens",
                where=f"rank {job.rank}",
                fix=f"a rank holds {self.kv_capacity_tokens}",
            )
        job.number = self._numbers
        self._numbers += 1
        job.submitted_s = self.now_s
        job.state = State.WAITING
        self.waiting[job.rank].append(job)

    def abort(self, job: Job) -> None:
        """Forget a request, wherever it is; a finished one stays finished."""
        if job.state is State.RUNNING:
            del self.running[job.rank][job.number]
            self.held_tokens[job.rank] -= job.context_tokens
        elif job.state is State.WAITING:
            self.waiting[job.rank].remove(job)
        else:
            return
        job.state = State.ABORTED
        job.finished_s = self.now_s

    def begin(self) -> float:
        """Start a step: admit, price; its length in seconds."""
        prompts = [self._admit(rank) for rank in range(self.ranks)]
        self._stepping = [job for jobs in self.running for job in jobs.values()]
        price_us = float(self._cost.cost(np.array(self.batch), self.held_tokens))
        self.last_step_s = (price_us + self._prefill_us * max(prompts)) / 1e6
        return self.last_step_s

    def end(self) -> int:
        """Finish the step that was started: a token for every request that ran from its start; how many there were."""
        if self._stepping is None:
            return 0
        stepping, self._stepping = self._stepping, None
        self.now_s += self.last_step_s
        made = 0
        for job in stepping:
            if job.state is not State.RUNNING:
                continue  # aborted or preempted on the way
            if self.held_tokens[job.rank] >= self.kv_capacity_tokens:
                self._preempt(job)
                if job.state is not State.RUNNING:
                    continue
            made += 1
            job.made += 1
            self.held_tokens[job.rank] += 1
            self.generated[job.rank] += 1
            if job.made == 1:
                job.first_token_s = self.now_s
            if job.made >= job.output_tokens:
                del self.running[job.rank][job.number]
                self.held_tokens[job.rank] -= job.context_tokens
                job.state = State.FINISHED
                job.finished_s = self.now_s
            if job.on_token is not None:
                job.on_token(job)
        self.steps += 1
        return made

    def step(self) -> int:
        """A whole step at once."""
        self.begin()
        return self.end()

    def run(self, most_steps: int = 1_000_000) -> int:
        """Step until nothing is left; steps taken."""
        taken = 0
        while self.busy and taken < most_steps:
            self.step()
            taken += 1
        return taken

    def jobs(self) -> Iterable[Job]:
        """Every request it holds."""
        for rank in range(self.ranks):
            yield from self.running[rank].values()
            yield from self.waiting[rank]

    def _admit(self, rank: int) -> int:
        """Start what fits, oldest first; prompt tokens that were started."""
        prompts = 0
        queue, running = self.waiting[rank], self.running[rank]
        while queue and len(running) < self.max_batch:
            job = queue[0]
            if self.held_tokens[rank] + job.context_tokens + 1 > self.kv_capacity_tokens:
                break  # those behind it wait too, as engines do
            queue.popleft()
            running[job.number] = job
            job.state = State.RUNNING
            self.held_tokens[rank] += job.context_tokens
            prompts += job.context_tokens
            self.prompted[rank] += job.context_tokens
        return prompts

    def _preempt(self, job: Job) -> None:
        """Make room on a full rank: its youngest request goes back to the head of the queue."""
        rank = job.rank
        youngest = max(self.running[rank].values(), key=lambda other: other.number)
        del self.running[rank][youngest.number]
        self.held_tokens[rank] -= youngest.context_tokens
        youngest.state = State.WAITING
        self.waiting[rank].appendleft(youngest)
        self.preempted[rank] += 1
