"""`equipoise serve envoy-config`: Envoy's file, from the same options and configuration as the picker's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Many, Urls
from equipoise.cli.printing import give

__all__ = ["app"]

app = App(name="envoy-config")

Flag = Annotated[bool, Parameter(negative="")]


@app.default
def envoy_config(
    *,
    worker_urls: Urls = (),
    config: Path | None = None,
    listen: str = "127.0.0.1:10000",
    admin: str | None = None,
    picker: Many = (),
    message_timeout_secs: float | None = None,
    queue_timeout_secs: float | None = None,
    connect_timeout_secs: float | None = None,
    idle_timeout_secs: float | None = None,
    max_body_mib: Whole | None = None,
    max_connections: Whole | None = None,
    access_log: bool = True,
    usage: Flag = False,
    behind_pd_proxy: Flag = False,
    output: Path | None = None,
) -> None:
    """Write the configuration of an Envoy whose requests are placed by 'equipoise serve --mode ext-proc'.

    Commented YAML on standard output: 'envoy -c FILE' runs it. What does not go together is refused.

    Parameters
    ----------
    worker_urls
        Engines: http://ADDRESS:PORT, the same that the picker is given.
    config
        The TOML file of 'equipoise serve': workers, queue time, timeouts and limits are taken from it.
    listen
        Where clients connect to Envoy.
    admin
        Envoy's own admin page, such as 127.0.0.1:9901; none by default.
    picker
        Where a picker listens: HOST:PORT or unix:PATH. Repeatable; each of several owns a share (--share 1/2 ...).
        Default: 127.0.0.1:9100.
    message_timeout_secs
        How long Envoy waits for a picker. Default: 5 s more than it may queue a request.
    queue_timeout_secs
        How long a picker may queue a request, as it was told. Default: 30.
    connect_timeout_secs
        To an engine. Default: 5.
    idle_timeout_secs
        Without a byte either way, waiting for the first one included; 0: for ever. Default: 600.
    max_body_mib
        Largest request, in MiB; at most 60. Default: 32.
    max_connections
        To engines at once, and as many requests. Default: 100000.
    access_log
        With --no-access-log pickers are not told how requests ended.
    usage
        Envoy reads the token counts in answers; a filter its makers call work in progress.
    behind_pd_proxy
        The clients are a proxy that has chosen the prefill side: its headers about that pass.
    output
        Write there rather than to standard output.
    """
    from equipoise.serve.envoy.config import envoy_config as text_of
    from equipoise.serve.envoy.options import MOST_BODY_BYTES, EnvoyOptions

    options: dict[str, Any] = {
        "listen": listen,
        "admin": admin or "",
        "access_log": access_log,
        "usage": usage,
    }
    workers = list(worker_urls)
    if config is not None:
        made = _read(config, worker_urls)
        workers = [worker.url for worker in made.workers]
        options["behind_pd_proxy"] = behind_pd_proxy or made.forwarding.behind_pd_proxy
        options["queue_ttl_s"] = made.router.queue_ttl_s
        options["connect_timeout_s"] = made.timeouts.connect_s
        options["idle_timeout_s"] = max(made.timeouts.first_byte_s, made.timeouts.idle_s)
        options["most_body_bytes"] = min(made.limits.body_bytes, MOST_BODY_BYTES)
    given = {
        "pickers": picker or None,
        "message_timeout_s": message_timeout_secs,
        "queue_ttl_s": queue_timeout_secs,
        "connect_timeout_s": connect_timeout_secs,
        "idle_timeout_s": idle_timeout_secs,
        "most_body_bytes": None if max_body_mib is None else max_body_mib << 20,
        "most_connections": max_connections,
    }
    options |= {key: value for key, value in given.items() if value is not None}
    options.setdefault("message_timeout_s", options.get("queue_ttl_s", 30.0) + 5.0)
    text = text_of(EnvoyOptions(workers=[_address(url) for url in workers], **options))
    give(text, output)


def _address(url: str) -> str:
    from equipoise.engines.workers import parse_line

    return parse_line(url, "--worker-urls").url


def _read(config: Path, worker_urls: tuple[str, ...]) -> Any:
    from equipoise.engines.workers import parse_line
    from equipoise.serve.config_file import read_config

    return read_config(
        config, {"workers": tuple(parse_line(url, "--worker-urls") for url in worker_urls) or None}
    )
