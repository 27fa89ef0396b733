"""What a comparison compares: the grid of traces, pools, costs, policies and seeds, with every default resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.policies import Policy, parse
from equipoise.replay import Information, Pool
from equipoise.replay.engine import DEFAULT_BATCH, Mode

__all__ = ["ARTICLE_POLICIES", "ComparePlan", "Setting", "default_policies"]

GroupPolicy = Literal["least_batch", "least_tokens"]

ARTICLE_POLICIES = (
    "least_batch",
    "least_tokens",
    "length_split",
    "length_split,swapped=true",
    *(f"dualpath,z={z}" for z in (1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5)),
)
"""The source article's four policies, C both ways, D over its threshold."""


def default_policies() -> list[Policy]:
    """The article's policies, ready to use."""
    return [parse(text) for text in ARTICLE_POLICIES]


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything of a cell but the policy: policies are compared inside one setting, on the same requests."""

    trace: str
    cost: StepCost
    mode: Mode
    pool: Pool
    group_policy: GroupPolicy
    concurrency: int | None
    """Requests in the pool; None in ``timed`` mode where the arrivals are taken as they come."""
    information: Information = field(default_factory=Information)
    """Router replicas and what they know."""


@dataclass(frozen=True, slots=True)
class ComparePlan:
    """A comparison, resolved.

    Parameters
    ----------
    traces : sequence of str
        Files, folders or preset names, as `equipoise.traces.load` takes them.
    costs : sequence of StepCost
    policies : sequence of Policy
    pool : Pool
        ``groups`` is replaced by each of `groups`.
    groups : sequence of int
    group_policies : sequence of {"least_batch", "least_tokens"}
    mode : {"saturated", "timed"}
    concurrency : int, optional
        Requests in the pool; 32 a rank by default. In ``timed`` mode, if given, the arrival rate is scaled so that
        about so many run.
    requests : int, optional
        Requests of a run; by default enough to turn the pool over twenty times, at least the whole trace.
    seeds : int
        Runs a cell.
    first_seed : int
    rate_scale : float
        ``timed``: arrivals come this many times as fast.
    information : Information
        Router replicas and what they know of the ranks; one that knows all by default.
    baseline : str, optional
        Label or name of the policy the others are compared with; the first one by default.
    """

    traces: Sequence[str]
    costs: Sequence[StepCost]
    policies: Sequence[Policy]
    pool: Pool = field(default_factory=Pool)
    groups: Sequence[int] = (1,)
    group_policies: Sequence[GroupPolicy] = ("least_batch",)
    mode: Mode = "saturated"
    concurrency: int | None = None
    requests: int | None = None
    seeds: int = 5
    first_seed: int = 0
    rate_scale: float = 1.0
    warmup_turnovers: float = 1.0
    information: Information = field(default_factory=Information)
    baseline: str | None = None

    def __post_init__(self) -> None:
        for name, values in (
            ("trace", self.traces),
            ("cost", self.costs),
            ("policy", self.policies),
            ("groups", self.groups),
            ("group_policy", self.group_policies),
        ):
            if not values:
                raise InputError(f"no {name} given", fix=f"name at least one {name}")
        _within("seeds", self.seeds, 1, 10_000)
        _within("seed", self.first_seed, 0, 2**31)
        if self.concurrency is not None:
            _within("concurrency", self.concurrency, 1, 2**31 - 1)
        if self.requests is not None:
            _within("requests", self.requests, 1, 2**31 - 1)
        labels = [p.label for p in self.policies]
        for label in labels:
            if labels.count(label) > 1:
                raise InputError(f"policy {label!r} is given twice", fix="name each policy once")
        for trace in self.traces:
            if list(self.traces).count(trace) > 1:
                raise InputError(f"trace {trace!r} is given twice", fix="name each trace once")
        names = [c.name for c in self.costs]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two costs are named {name!r}", fix="give one of the files another name")
        if self.baseline is not None:
            self.baseline_policy()
        for groups in self.groups:
            self._pool(groups)

    def _pool(self, groups: int) -> Pool:
        p = self.pool
        return Pool(p.instances, p.ranks, p.kv_capacity_tokens, p.max_batch, p.growth_reserve_tokens, groups)

    def target_concurrency(self) -> int:
        """Requests in the pool: given, or 32 a rank."""
        return self.concurrency or DEFAULT_BATCH * self.pool.total_ranks

    def baseline_policy(self) -> Policy:
        """The policy that differences are taken against."""
        if self.baseline is None:
            return self.policies[0]
        wanted = self.baseline.strip()
        labels = [p.label for p in self.policies]
        if wanted in labels:
            return self.policies[labels.index(wanted)]
        label = parse(wanted).label
        if label in labels:
            return self.policies[labels.index(label)]
        raise InputError(
            f"baseline {wanted!r} is not among the policies", fix=f"use one of: {'; '.join(labels)}"
        )

    def settings(self) -> list[Setting]:
        """The grid without policies and seeds; one group has no group policy to vary."""
        found = []
        concurrency = self.concurrency if self.mode == "timed" else self.target_concurrency()
        for trace in self.traces:
            for cost in self.costs:
                for groups in self.groups:
                    for group_policy in self.group_policies if groups > 1 else self.group_policies[:1]:
                        found.append(
                            Setting(
                                trace,
                                cost,
                                self.mode,
                                self._pool(groups),
                                group_policy,
                                concurrency,
                                self.information,
                            )
                        )
        return found


def _within(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{name} = {value!r}", fix=f"must be a whole number from {low} to {high}")
