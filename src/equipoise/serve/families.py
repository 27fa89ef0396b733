"""Families of Prometheus metrics with our prefix, from plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from equipoise.serve.tally import Histogram

__all__ = ["PREFIX", "counter", "gauge", "gauges", "histogram", "one_counter"]

PREFIX = "equipoise_"


def counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    """A counter with one label."""
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], float(value))
    return family


def one_counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A counter without labels."""
    return CounterMetricFamily(PREFIX + name, text, value=float(value))


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """A gauge without labels."""
    return GaugeMetricFamily(PREFIX + name, text, value=float(value))


def gauges(
    name: str, text: str, labels: list[str], rows: Iterable[tuple[list[str], float]]
) -> GaugeMetricFamily:
    """A gauge with labels."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, float(value))
    return family


def histogram(name: str, text: str, found: Histogram) -> HistogramMetricFamily:
    """A histogram."""
    return HistogramMetricFamily(PREFIX + name, text, buckets=found.buckets(), sum_value=found.sum)
