"""What the dashboard shows: rows of panels, each with its queries and what a reader should make of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ROWS", "Panel"]

BY_WORKER = '{worker=~"$worker"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Parameters
    ----------
    title : str
    about : str
        What a reader should make of it.
    queries : tuple of (str, str)
        PromQL, and the legend of its series.
    unit : str
        Grafana's name of it.
    kind : str
        ``timeseries`` or ``stat``.
    width : int
        Of 24 columns.
    least, most : float, optional
        Ends of the axis.
    """

    title: str
    about: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    least: float | None = 0.0
    most: float | None = None


def _per_s(metric: str, label: str) -> tuple[str, str]:
    return f"sum by ({label}) (rate({metric}[$__rate_interval]))", f"{{{{{label}}}}}"


def _quantile(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[$__rate_interval])))", f"p{q * 100:g}")
        for q in (0.5, 0.99)
    )


ROWS: dict[str, tuple[Panel, ...]] = {
    "At a glance": (
        Panel(
            "Excess",
            "What a step costs more than it would with the same load spread evenly.",
            (("sum(equipoise_step_price) / sum(equipoise_step_price_even) - 1", ""),),
            "percentunit", "stat", 4,
        ),
        Panel(
            "Bubble",
            "Share of a step that the average rank waits for the slowest.",
            (("avg(equipoise_bubble_ratio)", ""),),
            "percentunit", "stat", 4,
        ),
        Panel(
            "Running", "Requests on all ranks.",
            (("sum(equipoise_worker_running_reqs)", ""),), kind="stat", width=4,
        ),
        Panel(
            "Queued", "Requests that wait for room.",
            (("sum(equipoise_queued_requests)", ""),), kind="stat", width=4,
        ),
        Panel(
            "Instances up", "Instances that serve without restraint.",
            (('sum(equipoise_worker_state{state="up"})', ""),), kind="stat", width=4,
        ),
        Panel(
            "On fresh reports", "1: decisions stand on recent reports; less: on the ledger alone, or on nothing.",
            (('min(equipoise_fallback_rung{rung="fresh"})', ""),), kind="stat", width=4,
        ),
    ),
    "Balance": (
        Panel(
            "Excess by instance",
            "The slowest rank sets a step's time: what that costs beyond an even load.",
            ((f"equipoise_step_price{BY_WORKER} / equipoise_step_price_even{BY_WORKER} - 1", "{{worker}}"),),
            "percentunit",
        ),
        Panel(
            "Bubble by instance", "Share of a step that ranks wait, on average.",
            ((f"equipoise_bubble_ratio{BY_WORKER}", "{{worker}}"),), "percentunit", most=1.0,
        ),
        Panel(
            "Balance ratio", "Mean over largest context tokens of an instance's ranks; 1 is even.",
            ((f"equipoise_balance_ratio{BY_WORKER}", "{{worker}}"),), "percentunit", most=1.0,
        ),
        Panel(
            "Largest over mean", "Requests and context tokens: the fullest rank against the average one.",
            (
                (f"equipoise_dp_batch_imbalance_ratio{BY_WORKER}", "{{worker}} requests"),
                (f"equipoise_dp_token_imbalance_ratio{BY_WORKER}", "{{worker}} tokens"),
            ),
            least=1.0,
        ),
        Panel(
            "Requests by rank", "B of every rank.",
            ((f"equipoise_num_running_reqs{BY_WORKER}", "{{worker}} / {{dp_rank}}"),),
        ),
        Panel(
            "Context tokens by rank", "C of every rank.",
            ((f"equipoise_num_used_tokens{BY_WORKER}", "{{worker}} / {{dp_rank}}"),),
        ),
        Panel(
            "KV cache in use", "Context tokens over capacity, by rank; ranks without a known limit are left out.",
            (
                (
                    f"equipoise_num_used_tokens{BY_WORKER} / (equipoise_max_total_num_tokens{BY_WORKER} > 0)",
                    "{{worker}} / {{dp_rank}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Time of a step", "As the engines step, or as it is inferred from their tokens.",
            ((f"equipoise_step_seconds{BY_WORKER} > 0", "{{worker}}"),), "s",
        ),
        Panel(
            "Steps", "Steps a second.",
            ((f"rate(equipoise_steps_total{BY_WORKER}[$__rate_interval])", "{{worker}}"),),
        ),
    ),
    "Policies that look on": (
        Panel(
            "Price of a step",
            "The whole pool, under the policy that serves and as each policy that looks on would have it.",
            (
                ("sum(equipoise_step_price)", "serving"),
                ("sum by (policy) (equipoise_shadow_step_price)", "{{policy}}"),
                ("sum(equipoise_step_price_even)", "spread evenly"),
            ),
        ),
        Panel(
            "Against the policy that serves",
            "Mean price of a step against the serving policy's, over the same moments; below 0: cheaper.",
            (
                (
                    "sum by (policy) (rate(equipoise_shadow_price_total[$__rate_interval]))"
                    " / scalar(sum(rate(equipoise_price_total[$__rate_interval]))) - 1",
                    "{{policy}}",
                ),
            ),
            "percentunit", least=None,
        ),
        Panel(
            "Same choice", "Share of requests for which it would have chosen the same rank.",
            (
                (
                    'sum by (policy) (rate(equipoise_shadow_choices_total{choice="same"}[$__rate_interval]))'
                    " / sum by (policy) (rate(equipoise_shadow_choices_total[$__rate_interval]))",
                    "{{policy}}",
                ),
            ),
            "percentunit", most=1.0,
        ),
    ),
    "Traffic": (
        Panel("Requests", "A second, by route.", (_per_s("equipoise_requests_total", "route"),), "reqps"),
        Panel("Answers", "A second, by status.", (_per_s("equipoise_answers_total", "status"),), "reqps"),
        Panel(
            "Output tokens", "A second.",
            (("sum(rate(equipoise_tokens_total[$__rate_interval]))", "tokens"),),
        ),
        Panel("To the first byte", "From arrival.", _quantile("equipoise_first_byte_seconds"), "s"),
        Panel(
            "Under way", "Requests with an answer that is not over.",
            (("sum(equipoise_streams)", "streams"),),
        ),
        Panel("Leases", "Held, and given back a second.", (
            ("sum(equipoise_leases)", "held"), ("sum(equipoise_release_rate)", "given back a second"),
        )),
    ),
    "Queue and decisions": (
        Panel("Queue", "Requests that wait for room.", (("sum(equipoise_queued_requests)", "requests"),)),
        Panel("Time in the queue", "From arrival to dispatch.", _quantile("equipoise_queue_seconds"), "s"),
        Panel(
            "Time of a decision", "Of a round, for each of its requests.",
            _quantile("equipoise_decision_seconds"), "s",
        ),
        Panel("Turned away", "A second, by reason.", (
            _per_s("equipoise_rejected_total", "reason"), _per_s("equipoise_refused_total", "reason"),
        ), "reqps"),
        Panel("Failed and stopped", "A second, by reason.", (
            _per_s("equipoise_failed_total", "reason"), _per_s("equipoise_aborted_total", "reason"),
        ), "reqps"),
        Panel("Timers and second tries", "A second.", (
            _per_s("equipoise_timeouts_total", "timer"), _per_s("equipoise_retries_total", "reason"),
        ), "reqps"),
    ),
    "Engines": (
        Panel("State", "1 for the state an instance is in.", (
            (f"equipoise_worker_state{BY_WORKER} == 1", "{{worker}} {{state}}"),
        )),
        Panel("What decisions stand on", "1 for the rung of the ladder.", (
            ("max by (rung) (equipoise_fallback_rung)", "{{rung}}"),
        )),
        Panel("Age of reports", "Oldest of an instance's ranks.", (
            (f"equipoise_report_age_seconds{BY_WORKER}", "{{worker}}"),
        ), "s"),
        Panel(
            "Answers of engines", "A second, by status.",
            (_per_s("equipoise_engine_answers_total", "status"),), "reqps",
        ),
        Panel(
            "Looks at engines that failed", "A second.",
            (_per_s("equipoise_poll_failures_total", "reason"),), "reqps",
        ),
        Panel(
            "Thrown out", "Requests a second that engines put out of their cache: more was sent there than fits.",
            (_per_s("equipoise_engine_preemptions_total", "worker"),), "reqps",
        ),
        Panel("Missing requests", "Own requests that engines no longer show.", (
            (f"sum by (worker) (equipoise_missing_reqs{BY_WORKER})", "{{worker}}"),
        )),
    ),
}  # fmt: skip
"""Rows of panels, from the question asked first to those asked when something is wrong."""
