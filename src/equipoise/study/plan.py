"""What a comparison compares: the grid of traces, pools, costs, policies and seeds, with every default resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.fleet.config import Deployment, number
from equipoise.policies import Policy, parse
from equipoise.replay import Information, Pool
from equipoise.replay.engine import DEFAULT_BATCH
from equipoise.study.loads import usual_concurrency

__all__ = ["ARTICLE_POLICIES", "ComparePlan", "Mode", "Setting", "default_policies"]

Mode = Literal["saturated", "timed", "sessions"]
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
    """Requests in the pool; None where the arrivals are taken as they come."""
    information: Information = field(default_factory=Information)
    """Router replicas and what they know."""
    deployment: Deployment | None = None
    """What is around the pool, whose `pool` and `information` are those of it; None: a pool alone."""
    deployment_name: str | None = None

    @property
    def grouped(self) -> bool:
        """Whether a group (or the instance that owns itself) is chosen first."""
        return self.pool.groups > 1 or self.information.split == "instance"

    @property
    def simulated(self) -> Deployment | None:
        """The deployment to simulate; None where the offline study replays all there is."""
        if self.deployment is not None:
            return self.deployment
        if self.mode == "sessions" or not self.information.plain:
            return Deployment(self.pool, information=self.information)
        return None


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
    mode : {"saturated", "timed", "sessions"}
        ``sessions``: later turns of a conversation arrive when the one before has ended and the client has thought.
    concurrency : int, optional
        Requests in the pool; 32 a rank by default. With arrivals (``timed``, ``sessions``), if given, their rate is
        scaled so that about so many run. Of a deployment: by default what its KV caches hold, 32 a rank at most
        (`equipoise.study.loads.usual_concurrency`), and arrivals are scaled to it.
    load_per_rank : float, optional
        The same, a rank.
    as_recorded : bool
        Arrivals of a deployment are taken as they come, times `rate_scale`.
    rate_per_s : float, optional
        With arrivals: so many requests a second, in place of a load; times `rate_scale`.
    requests : int, optional
        Requests of a run; by default enough to turn the pool over twenty times, at least the whole trace.
    seeds : int
        Runs a cell.
    first_seed : int
    rate_scale : float
        With arrivals: they come this many times as fast.
    information : Information
        Router replicas and what they know of the ranks; one that knows all by default.
    baseline : str, optional
        Label or name of the policy the others are compared with; the first one by default.
    deployments : mapping of str to Deployment
        By name: whole deployments, each with a pool and information of its own; those above are then left alone.
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
    load_per_rank: float | None = None
    as_recorded: bool = False
    rate_per_s: float | None = None
    deployments: Mapping[str, Deployment] = field(default_factory=dict)

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
        if self.load_per_rank is not None:
            number("load_per_rank", self.load_per_rank, 1e-3, 1e6)
            if self.concurrency is not None:
                raise InputError("both concurrency and load_per_rank", fix="give one of them")
        loaded = self.concurrency is not None or self.load_per_rank is not None
        if self.rate_per_s is not None:
            number("rate_per_s", self.rate_per_s, 1e-9)
        if loaded and (self.as_recorded or self.rate_per_s is not None):
            raise InputError("both a load and an arrival rate", fix="give one of them")
        if self.mode == "saturated" and (self.as_recorded or self.rate_per_s is not None):
            raise InputError("an arrival rate in saturated mode", fix="use mode 'timed' or 'sessions'")
        own = (self.pool, self.information, tuple(self.groups))
        if self.deployments and own != (Pool(), Information(), (1,)):
            raise InputError(
                "a pool, groups or information beside a deployment", fix="change it in the deployment's file"
            )
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
            Deployment(self._pool(groups), information=self.information)  # do they go together?

    def _pool(self, groups: int) -> Pool:
        p = self.pool
        return Pool(p.instances, p.ranks, p.kv_capacity_tokens, p.max_batch, p.growth_reserve_tokens, groups)

    def target_concurrency(self, pool: Pool | None = None) -> int:
        """Requests in a pool (the plan's own if not given): given, or 32 a rank."""
        ranks = (pool or self.pool).total_ranks
        if self.load_per_rank is not None:
            return max(1, round(self.load_per_rank * ranks))
        return self.concurrency or DEFAULT_BATCH * ranks

    def _usual_concurrency(self, trace: str, deployment: Deployment) -> int:
        if self.concurrency is not None or self.load_per_rank is not None:
            return self.target_concurrency(deployment.pool)
        return usual_concurrency(trace, deployment)

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
        for trace in self.traces:
            for cost in self.costs:
                for deployment_name, deployment in self.deployments.items():
                    pool, information = deployment.pool, deployment.information
                    recorded = self.as_recorded or self.rate_per_s is not None
                    concurrency = None if recorded else self._usual_concurrency(trace, deployment)
                    several = pool.groups > 1 or information.split == "instance"
                    found += [
                        Setting(
                            trace,
                            cost,
                            self.mode,
                            pool,
                            way,
                            concurrency,
                            information,
                            deployment,
                            deployment_name,
                        )
                        for way in (self.group_policies if several else self.group_policies[:1])
                    ]
                for groups in () if self.deployments else self.groups:
                    several = groups > 1 or self.information.split == "instance"
                    found += [
                        Setting(
                            trace,
                            cost,
                            self.mode,
                            self._pool(groups),
                            way,
                            self._own_concurrency(),
                            self.information,
                        )
                        for way in (self.group_policies if several else self.group_policies[:1])
                    ]
        return found

    def _own_concurrency(self) -> int | None:
        """Requests in the plan's own pool; with arrivals only if a load was asked for."""
        asked = self.concurrency is not None or self.load_per_rank is not None
        return self.target_concurrency() if asked or self.mode == "saturated" else None


def _within(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{name} = {value!r}", fix=f"must be a whole number from {low} to {high}")
