"""``python -m equipoise.testing.mock_engine``: serve a mock engine until it is interrupted."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated, Literal

from cyclopts import App, Parameter

from equipoise.errors import EquipoiseError
from equipoise.testing.mock_engine.server import MockEngine

app = App(name="python -m equipoise.testing.mock_engine", help=__doc__)


@app.default
def serve(
    *,
    engine: Literal["vllm", "sglang", "dynamo"] = "vllm",
    ranks: int = 4,
    cost: str = "h200",
    speed_up: float = 1.0,
    kv_capacity_tokens: int = 1 << 20,
    max_batch: int = 256,
    ports: Literal["one", "per-rank"] = "one",
    first_rank: int = 0,
    numbering: Literal["local", "global"] = "local",
    publish_steps: int | None = None,
    prefill_us_per_token: float = 0.0,
    mean_output_tokens: float = 0.0,
    header_overrides: Annotated[bool, Parameter(negative="")] = False,
    model: str = "tiny",
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """Serve R ranks in lock-step.

    Parameters
    ----------
    engine
        Whose pins, errors, metrics and loads it imitates.
    ranks
        Ranks of the instance.
    cost
        Step cost: a preset's name or a file.
    speed_up
        Divides the time between steps.
    kv_capacity_tokens
        Tokens a rank holds.
    max_batch
        Requests a rank runs at once.
    ports
        One address for all ranks, or one a rank (port, port + 1, ...). Dynamo's system port comes after the last.
    first_rank
        Number of its first rank in the deployment.
    numbering
        What a rank number means where first_rank is above 0 (vLLM).
    publish_steps
        Steps between two pictures in metrics; default: as the engine does.
    prefill_us_per_token
        Time of a prompt token in microseconds.
    mean_output_tokens
        Requests without ignore_eos end after about so many tokens; 0: they use their budget.
    header_overrides
        SGLang: take x-override-* headers.
    model
        Name of the model it serves.
    host, port
        Where it listens; port 0: any free one.
    """
    mock = MockEngine(
        engine,
        ranks=ranks,
        cost=cost,
        speed_up=speed_up,
        kv_capacity_tokens=kv_capacity_tokens,
        max_batch=max_batch,
        ports=ports,
        first_rank=first_rank,
        numbering=numbering,
        publish_steps=publish_steps,
        prefill_us_per_token=prefill_us_per_token,
        mean_output_tokens=mean_output_tokens,
        header_overrides=header_overrides,
        model=model,
        host=host,
        port=port,
    )
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(mock))
    else:
        uvloop.run(_serve(mock))


async def _serve(mock: MockEngine) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with mock:
        for url in mock.urls:
            print(url, flush=True)
        if mock.system_url:
            print(f"{mock.system_url} (system port: metrics of worker {mock.worker_id})", flush=True)
        await stop.wait()


def main() -> int:
    """Run it; errors of this package in one line."""
    try:
        app()
    except (EquipoiseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
