"""Reading a page of vLLM's metrics, ours against prometheus_client's parser: `python bench/router/scrape.py`."""

from __future__ import annotations

import time

from prometheus_client.parser import text_string_to_metric_families

from equipoise.engines.vllm import read_metrics

GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")


def page(ranks: int, histograms: int = 20, buckets: int = 25) -> bytes:
    """As many lines as a vLLM of so many ranks shows."""
    families = [(f"vllm:{name}", 1) for name in GAUGES]
    families += [(f"vllm:histogram_{i}_seconds_bucket", buckets) for i in range(histograms)]
    lines = []
    for name, count in families:
        lines += [f"# HELP {name} A family.", f"# TYPE {name} gauge"]
        lines += [
            f'{name}{{engine="{r}",le="{b}",model_name="tiny"}} 0.{b}'
            for r in range(ranks)
            for b in range(count)
        ]
    sizes = 'block_size="16",kv_cache_size_tokens="65536",num_gpu_blocks="4096"'
    lines += [f'vllm:cache_config_info{{engine="{r}",{sizes}}} 1.0' for r in range(ranks)]
    return ("\n".join(lines) + "\n").encode()


def main() -> None:
    for ranks in (2, 64):
        data = page(ranks)
        times = []
        for _ in range(7):
            start = time.perf_counter()
            read_metrics(data)
            times.append((time.perf_counter() - start) * 1e3)
        start = time.perf_counter()
        list(text_string_to_metric_families(data.decode()))
        other = (time.perf_counter() - start) * 1e3
        print(
            f"{ranks} ranks, {len(data):,} bytes: {min(times):.2f} to {max(times):.2f} ms; theirs {other:,.0f} ms"
        )


if __name__ == "__main__":
    main()
