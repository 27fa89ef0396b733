"""`equipoise serve`: the router before real engines."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Many, Urls
from equipoise.errors import InputError

__all__ = ["app"]

app = App(name="serve")
app.command(
    "equipoise.cli.serve_envoy:app",
    name="envoy-config",
    help="Write the configuration of an Envoy before a picker.",
)
app.command(
    "equipoise.cli.serve_grafana:app",
    name="grafana",
    help="Write a Grafana dashboard of the router's metrics.",
)

Flag = Annotated[bool | None, Parameter(negative="")]
FROM_ENVIRONMENT = {
    "api_key": "EQUIPOISE_API_KEY",
    "forwarding.worker_key": "EQUIPOISE_WORKER_API_KEY",
    "admin_token": "EQUIPOISE_ADMIN_TOKEN",
    "replicas.redis": "EQUIPOISE_REPLICAS_REDIS",
    "replicas.token": "EQUIPOISE_REPLICAS_TOKEN",
}


@app.default
def serve(
    *,
    worker_urls: Urls = (),
    workers_file: str | None = None,
    workers_dns: str | None = None,
    engine: str | None = None,
    dp_size: str | None = None,
    policy: str | None = None,
    cost: str | None = None,
    config: Path | None = None,
    mode: Literal["proxy", "ext-proc"] = "proxy",
    picker: str | None = None,
    share: str | None = None,
    check: Annotated[bool, Parameter(negative="")] = False,
    host: str | None = None,
    port: Whole | None = None,
    admin_host: str | None = None,
    prometheus_port: Annotated[Whole | None, Parameter(alias="--admin-port")] = None,
    api_key: str | None = None,
    worker_api_key: str | None = None,
    admin_token: str | None = None,
    kv_capacity_tokens: Whole | None = None,
    max_batch: Whole | None = None,
    tokenizer: str | None = None,
    growth_reserve_tokens: Whole | None = None,
    scope: Literal["pool", "instance"] | None = None,
    counts: Literal["stream", "extrapolated"] | None = None,
    affinity_bonus: float | None = None,
    gather_ms: float | None = None,
    max_queued_requests: Whole | None = None,
    queue_timeout_secs: float | None = None,
    connect_timeout_secs: float | None = None,
    first_byte_timeout_secs: float | None = None,
    idle_timeout_secs: float | None = None,
    request_timeout_secs: float | None = None,
    drain_secs: float | None = None,
    retries: Whole | None = None,
    poll_interval_secs: float | None = None,
    reveal: Flag = None,
    behind_pd_proxy: Flag = None,
    sglang_header_overrides: Flag = None,
    decide: bool | None = None,
    decision_log: str | None = None,
    shadow: Many = (),
    replicas_redis: str | None = None,
    replicas_pool: str | None = None,
    advertise: str | None = None,
    replicas_listen: str | None = None,
    replicas_token: str | None = None,
    seed: Whole | None = None,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
) -> int:
    """Serve: a proxy and a decision API that place requests on the decode ranks of real engines.

    Clients talk to it as to an engine. Every request gets a rank by the policy that was simulated, on an exact ledger
    of what runs where. Options win over the file of --config.

    Parameters
    ----------
    worker_urls
        Engines: http://HOST:PORT, or http://HOST:PORT@RANK where an address serves one rank of several.
    workers_file
        A file with engines, watched: lines, TOML or JSON.
    workers_dns
        A name with engines behind it: HOST:PORT, or an SRV name.
    engine
        What they are: vllm, sglang, dynamo, trtllm, or a third party's adapter. Default: vllm.
    dp_size
        Ranks of each engine: a number, or auto, as the engine says (the default).
    policy
        A policy with its parameters, as in 'equipoise compare'. Default: equipoise.
    cost
        A step cost: a measured preset, v1, v2, MODEL:v1, MODEL:v2 or a file. Default: h200.
    config
        A TOML file with all of this and more.
    mode
        proxy: answers pass through here. ext-proc: Envoy carries them and asks where to ('serve envoy-config').
    picker
        With --mode ext-proc: where Envoy asks, HOST:PORT or unix:PATH. Default: 127.0.0.1:9100.
    share
        With --mode ext-proc: which of several pickers this is, such as 2/5; each owns its instances, a fixed share of
        them, or with --replicas-redis those it has at the time.
    check
        Ask every engine once, say what is wrong, and end.
    host
        Where clients connect. Default: 127.0.0.1.
    port
        Default: 30000; 0: any free one.
    admin_host
        Where metrics and the admin routes are; other than loopback needs --admin-token. Default: 127.0.0.1.
    prometheus_port
        Their port. Default: 29000; 0: any free one.
    api_key
        What clients have to show; better in EQUIPOISE_API_KEY, for options are seen by all users of a machine.
    worker_api_key
        The engines' own key; better in EQUIPOISE_WORKER_API_KEY.
    admin_token
        What the admin port asks for; better in EQUIPOISE_ADMIN_TOKEN.
    kv_capacity_tokens
        KV cache of a rank, in tokens, where the engine does not say.
    max_batch
        Running requests of a rank, where the engine does not say.
    tokenizer
        The model's tokenizer.json, or its folder: prompts are counted by it instead of by their bytes.
    growth_reserve_tokens
        Tokens the capacity filter keeps free on a rank for growth. Default: 0.
    scope
        The policy sees the ranks of all engines at once (pool), or an engine is chosen first (instance). Default: pool.
    counts
        Generated tokens are counted as they stream by, or extrapolated: for the decision API alone. Default: stream.
    affinity_bonus
        A session stays on its rank if the step there costs at most this share more. Default: 0, off.
    gather_ms
        Gather requests that long into one round; 0: those that come at the same moment. Default: 0.
    max_queued_requests
        Requests that may wait for room. Default: 8192.
    queue_timeout_secs
        How long one may wait. Default: 30.
    connect_timeout_secs
        Until an engine takes a connection. Default: 5.
    first_byte_timeout_secs
        Until it begins to answer. Default: 600.
    idle_timeout_secs
        Between two chunks of an answer. Default: 120.
    request_timeout_secs
        A request as a whole. Default: 7200.
    drain_secs
        How long requests under way may take to end after SIGTERM. Default: 60.
    retries
        Second tries of a request, on other engines, before the first byte. Default: 2.
    poll_interval_secs
        From one look at an engine to the next. Default: 0.25.
    reveal
        Say in the answers which worker and rank served them.
    behind_pd_proxy
        The clients are a proxy that has chosen the prefill side: its headers about that pass.
    sglang_header_overrides
        SGLang runs with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1: bodies of /generate stay as they came.
    decide
        With --no-decide the main port has no decision API.
    decision_log
        Append every decision to this file: JSON lines that read as a trace.
    shadow
        Policies that look on, POLICY,...: what they would choose and what their steps would cost goes to the decision
        log, the metrics and /ui. Repeatable.
    replicas_redis
        Other routers serve the same engines: redis://HOST:PORT of the Redis or Valkey that keeps which of them places
        on which engine. With a password in it better in EQUIPOISE_REPLICAS_REDIS.
    replicas_pool
        Routers of one name share their engines. Default: default.
    advertise
        HOST:PORT at which the other routers reach this one. Default: 127.0.0.1 and any free port.
    replicas_listen
        HOST:PORT where it listens for them, if that is another one.
    replicas_token
        What routers show each other; better in EQUIPOISE_REPLICAS_TOKEN. Default: drawn, and kept in Redis.
    seed
        Of the policy. Default: 0.
    log_level
        How much is said on standard error.
    """
    try:
        from equipoise.serve.config_file import read_config
        from equipoise.serve.run import check as check_config
        from equipoise.serve.run import run, to_stderr
        from equipoise.serve.shadows import shadow_list
    except ImportError as error:
        raise InputError(
            f"serving needs {error.name or 'more'}",
            fix="pip install 'equipoise[serve]', in a checkout '.[serve]'",
        ) from error
    from equipoise.engines import names
    from equipoise.engines.workers import parse_line
    from equipoise.errors import nearest

    if engine is not None and engine not in names():
        raise InputError(f"no engine is called {engine!r}", where="--engine", fix=nearest(engine, names()))
    options: dict[str, Any] = {
        "workers": tuple(parse_line(url, "--worker-urls") for url in worker_urls) or None,
        "workers_file": workers_file,
        "workers_dns": workers_dns,
        "engine": engine,
        "dp_size": _ranks(dp_size),
        "policy": policy,
        "cost": cost,
        "host": host,
        "port": port,
        "admin_host": admin_host,
        "admin_port": prometheus_port,
        "api_key": api_key,
        "forwarding.worker_key": worker_api_key,
        "admin_token": admin_token,
        "kv_capacity_tokens": kv_capacity_tokens,
        "max_batch": max_batch,
        "tokenizer": tokenizer,
        "router.growth_reserve_tokens": growth_reserve_tokens,
        "router.scope": scope,
        "router.counts": counts,
        "router.affinity_bonus": affinity_bonus,
        "gather_ms": gather_ms,
        "router.max_queued_requests": max_queued_requests,
        "router.queue_ttl_s": queue_timeout_secs,
        "timeouts.connect_s": connect_timeout_secs,
        "timeouts.first_byte_s": first_byte_timeout_secs,
        "timeouts.idle_s": idle_timeout_secs,
        "timeouts.total_s": request_timeout_secs,
        "drain_s": drain_secs,
        "forwarding.retries": retries,
        "polling.period_s": poll_interval_secs,
        "forwarding.reveal": reveal,
        "forwarding.behind_pd_proxy": behind_pd_proxy,
        "sglang_header_overrides": sglang_header_overrides,
        "decide": decide,
        "decision_log": decision_log,
        "shadows": shadow_list(shadow) or None,
        "replicas.redis": replicas_redis,
        "replicas.pool": replicas_pool,
        "replicas.advertise": advertise,
        "replicas.listen": replicas_listen,
        "replicas.token": replicas_token,
        "seed": seed,
    }
    for name, variable in FROM_ENVIRONMENT.items():
        if options[name] is None:
            options[name] = os.environ.get(variable) or None
    made = read_config(config, options)
    if not made.replicas.on and (advertise or replicas_pool or replicas_listen or replicas_token):
        raise InputError(
            "there are no other routers", where="--advertise", fix="add --replicas-redis redis://HOST:PORT"
        )
    logging.basicConfig(
        stream=sys.stderr,
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    if mode != "ext-proc":
        if picker is not None or share is not None:
            raise InputError(
                "it is for Envoy", where="--picker" if picker else "--share", fix="add --mode ext-proc"
            )
        return (check_config if check else run)(made, to_stderr)
    from equipoise.serve.envoy.service import PickerService, picker_config

    made = picker_config(made, share)
    if check:
        return check_config(made, to_stderr)
    return run(made, to_stderr, lambda c: PickerService(c, picker or "127.0.0.1:9100", share))


def _ranks(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "auto":
        return 0
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= 4096:
        raise InputError(f"{text!r} is no number of ranks", where="--dp-size", fix="give 1 to 4096, or auto")
    return int(text)
