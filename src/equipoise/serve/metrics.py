"""Prometheus metrics: read from the router and the tallies when they are asked for, so that counting costs nothing.

Words: ``running_reqs``, ``used_tokens`` and the largest-over-mean ratios as in SGLang's ``dp_attention`` metrics,
``balance_ratio`` (mean over largest tokens) as in TensorRT-LLM's notes on attention-DP balance.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from equipoise.router import InstanceState, RouterView, Rung
from equipoise.serve.driver import Driver
from equipoise.serve.families import PREFIX, counter, gauge, gauges, histogram, one_counter
from equipoise.serve.prices import over_mean, priced
from equipoise.serve.replicas import metrics as ownership
from equipoise.serve.replicas.owners import Owners
from equipoise.serve.tally import Tally

__all__ = ["SECTIONS", "Metrics", "families"]

MOST_RANKS = 1024
"""Ranks that have series of their own; of a larger pool there are only those of its instances."""
MOST_INSTANCES = 512


class Metrics:
    """The page of metrics.

    Parameters
    ----------
    driver : Driver
    tally : Tally
    """

    def __init__(self, driver: Driver, tally: Tally) -> None:
        self.content_type = CONTENT_TYPE_LATEST
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Numbers(driver, tally))

    def page(self) -> bytes:
        """The text."""
        return generate_latest(self._registry)


SECTIONS = ("traffic", "queue", "instances", "ranks", "shadows", "ownership")


def families(driver: Driver, tally: Tally, section: str) -> Iterator[Metric]:
    """The metrics of a section of the page.

    Parameters
    ----------
    driver : Driver
    tally : Tally
    section : str
        One of `SECTIONS`.
    """
    numbers = _Numbers(driver, tally)
    view = driver.router.view(driver.now_s())
    if section == "traffic":
        return numbers._traffic()
    if section == "shadows":
        return numbers._shadows()
    if section == "ownership":
        return ownership.families(None)
    return {"queue": numbers._queue, "instances": numbers._instances, "ranks": numbers._ranks}[section](view)


class _Numbers(Collector):
    def __init__(self, driver: Driver, tally: Tally) -> None:
        self._driver, self._tally = driver, tally

    def collect(self) -> Iterator[Metric]:
        view = self._driver.router.view(self._driver.now_s())
        yield from self._traffic()
        yield from self._queue(view)
        yield from self._instances(view)
        if len(view.rank) <= MOST_RANKS:
            yield from self._ranks(view)
        yield from self._shadows()
        if isinstance(self._driver.owners, Owners):
            yield from ownership.families(self._driver.owners)

    def _traffic(self) -> Iterator[Metric]:
        tally = self._tally
        yield counter("requests", "Requests to the data path.", "route", tally.requests.of)
        yield counter("answers", "Answers given, by HTTP status.", "status", tally.answers.of)
        yield counter(
            "refused", "Requests turned away before an engine was asked.", "reason", tally.refused.of
        )
        yield counter("failed", "Requests that ended otherwise than well.", "reason", tally.failed.of)
        yield counter("timeouts", "Timers that ran out.", "timer", tally.timeouts.of)
        yield counter("retries", "Second tries, by what made them.", "reason", tally.retries.of)
        yield one_counter("retries_over_budget", "Second tries that were not allowed.", tally.retries_refused)
        yield counter(
            "engine_answers", "Answers of engines, by HTTP status.", "status", tally.upstream_status.of
        )
        yield counter("polls", "Looks at engines.", "worker", tally.polls.of)
        yield counter("poll_failures", "Looks that failed.", "reason", tally.poll_failures.of)
        yield counter(
            "engine_preemptions",
            "Requests that engines threw out of their cache for lack of room: more was sent there than fits.",
            "worker",
            tally.preemptions.of,
        )
        yield counter("decided", "Requests of the decision API.", "outcome", tally.decided.of)
        yield counter("released", "Leases the decision API was given back.", "outcome", tally.released.of)
        yield one_counter("tokens", "Output tokens passed on.", tally.tokens)
        yield one_counter("chunks", "Chunks of answers passed on.", tally.chunks)
        yield gauge("streams", "Requests under way.", tally.streams)
        yield gauge("request_body_bytes", "Bytes of request bodies held.", tally.body_bytes)
        yield histogram("decision_seconds", "Time of a round, for each of its requests.", tally.decision_s)
        yield histogram("queue_seconds", "From arrival to dispatch.", tally.queue_s)
        yield histogram(
            "first_byte_seconds", "From arrival to the first byte of the answer.", tally.first_byte_s
        )

    def _queue(self, view: RouterView) -> Iterator[Metric]:
        yield gauge("queued_requests", "Requests that wait for room.", view.queued_requests)
        yield gauge("queued_tokens", "Prompt tokens that wait for room.", view.queued_tokens)
        yield gauge("queued_bytes", "Bytes that wait for room.", view.queued_bytes)
        yield gauge("leases", "Leases held: requests on the ranks.", view.leases)
        yield gauge("release_rate", "Leases given back a second.", view.release_rate_per_s)
        rung = GaugeMetricFamily(
            PREFIX + "fallback_rung", "1 for the rung of the ladder decisions stand on.", labels=["rung"]
        )
        for one in Rung:
            rung.add_metric([one.value], float(one.value == view.rung))
        yield rung
        yield counter("rejected", "Requests the router turned away.", "reason", view.rejected)
        yield counter("aborted", "Leases that ended otherwise than finished.", "reason", view.aborted)
        yield counter("events", "What the router counts.", "event", view.counts)

    def _instances(self, view: RouterView) -> Iterator[Metric]:
        labels = ["worker"]
        state = GaugeMetricFamily(
            PREFIX + "worker_state", "1 for the state an instance is in.", labels=["worker", "state"]
        )
        rows = {
            name: GaugeMetricFamily(PREFIX + name, text, labels=labels)
            for name, text in (
                ("step_price", "Price of the next step, in units of the cost."),
                ("step_price_even", "The same, were its load spread evenly."),
                ("bubble_ratio", "Share of the next step that its ranks wait for the slowest, on average."),
                ("balance_ratio", "Mean over largest context tokens of its ranks."),
                ("dp_batch_imbalance_ratio", "Largest over mean running requests of its ranks."),
                ("dp_token_imbalance_ratio", "Largest over mean context tokens of its ranks."),
                ("step_seconds", "Time of a step lately; 0: not known."),
                ("report_age_seconds", "Age of its oldest report; absent: never reported."),
                ("worker_running_reqs", "Requests on its ranks."),
                ("worker_used_tokens", "Context tokens on its ranks."),
            )
        }
        steps = CounterMetricFamily(PREFIX + "steps", "Steps done, told or inferred.", labels=labels)
        found = priced(
            self._driver.router.cost,
            view.instance,
            view.batch,
            view.context_tokens,
            view.saturated_tokens,
            len(view.instance_names),
        )
        for i, name in enumerate(view.instance_names[:MOST_INSTANCES]):
            own = view.instance == i
            batch, context = view.batch[own], view.context_tokens[own]
            for one in InstanceState:
                state.add_metric([name, one.value], float(view.instance_states[i] == one.value))
            rows["step_price"].add_metric([name], float(view.step_price[i]))
            rows["step_price_even"].add_metric([name], float(found.even[i]))
            rows["bubble_ratio"].add_metric([name], float(found.bubble[i]))
            rows["balance_ratio"].add_metric([name], 1.0 / over_mean(context))
            rows["dp_batch_imbalance_ratio"].add_metric([name], over_mean(batch))
            rows["dp_token_imbalance_ratio"].add_metric([name], over_mean(context))
            rows["step_seconds"].add_metric([name], float(view.step_s[i]))
            age_s = float(view.report_age_s[own].max(initial=0.0))
            if age_s < 1e9:
                rows["report_age_seconds"].add_metric([name], age_s)
            rows["worker_running_reqs"].add_metric([name], float(batch.sum()))
            rows["worker_used_tokens"].add_metric([name], float(context.sum()))
            steps.add_metric([name], float(view.steps[i]))
        yield state
        yield steps
        yield from rows.values()

    def _ranks(self, view: RouterView) -> Iterator[Metric]:
        labels = ["worker", "dp_rank"]
        for name, text, column in (
            ("num_running_reqs", "Requests on a rank, B.", view.batch),
            ("num_used_tokens", "Context tokens on a rank, C.", view.context_tokens),
            ("own_reqs", "Requests on a rank that this router sent.", view.own_batch),
            ("own_tokens", "Context tokens on a rank of those.", view.own_context_tokens),
            ("missing_reqs", "Own requests that the last report must have seen and lacks.", view.missing),
            ("max_total_num_tokens", "KV capacity of a rank; -1: without a limit.", view.capacity_tokens),
            ("rank_drained", "1: nothing more is sent there.", view.drained),
        ):
            family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
            for r in range(len(view.rank)):
                worker = view.instance_names[int(view.instance[r])]
                family.add_metric([worker, str(int(view.rank[r]))], float(column[r]))
            yield family

    def _shadows(self) -> Iterator[Metric]:
        router = self._driver.router
        shadows = router.shadows(self._driver.now_s())
        samples, total = router.shadow_samples
        names = [spec.name for spec in router.instances][:MOST_INSTANCES]
        yield gauges(
            "shadow_step_price",
            "Price of the next step, had a policy that looks on placed everything.",
            ["policy", "worker"],
            (
                ([one.policy, name], price)
                for one in shadows
                for name, price in zip(names, one.step_price, strict=False)
            ),
        )
        choices = CounterMetricFamily(
            PREFIX + "shadow_choices",
            "Its choices: the same rank, another one, none (it would have waited).",
            labels=["policy", "choice"],
        )
        for one in shadows:
            for choice, count in (("same", one.same), ("other", one.other), ("wait", one.waits)):
                choices.add_metric([one.policy, choice], float(count))
        yield choices
        sums = {one.policy: one.price_sum for one in shadows}
        yield counter(
            "shadow_price", "Price of a step of its whole pool, added up over the samples.", "policy", sums
        )
        yield one_counter(
            "price", "Price of a step of the whole real pool, added up over the samples.", total
        )
        yield one_counter(
            "price_samples",
            "Moments at which prices were added up: when requests are placed, at most ten a second.",
            samples,
        )
        yield one_counter("shadow_errors", "Times that a shadow failed.", router.shadow_errors)
