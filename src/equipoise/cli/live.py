"""`equipoise live`: replay a trace against a real engine, policy by policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from equipoise.cli.live_run import carry_out, finish
from equipoise.cli.numbers import Whole
from equipoise.cli.options import Json, Many, Quiet, Urls, check_folder, split
from equipoise.errors import InputError, nearest

__all__ = ["app"]

app = App(name="live")
app.command(
    "equipoise.cli.live_analyse:analyse",
    name="analyse",
    help="Say what a live run showed: what differs, what is equal, and whether the prediction held.",
)

Flag = Annotated[bool, Parameter(negative="")]
POLICIES = ("least_batch", "least_tokens", "length_split", "dualpath", "equipoise")
KEY = "EQUIPOISE_WORKER_API_KEY"


@app.default
def live(
    *,
    url: Urls = (),
    engine: str = "vllm",
    trace: str | None = None,
    policies: Many = POLICIES,
    repeats: Whole = 5,
    output_dir: Path | None = None,
    resume: Path | None = None,
    requests: Whole | None = None,
    seed: Whole = 0,
    mode: Literal["open", "closed", "sessions"] = "open",
    scale: float = 1.0,
    concurrency: Whole | None = None,
    prompt_scale: float = 1.0,
    output_scale: float = 1.0,
    prefixes: Flag = False,
    prompts: Literal["ids", "text"] = "ids",
    token_ids: str = "10:250",
    route: str | None = None,
    model: str = "",
    dp_size: Whole | None = None,
    cost: str = "h200",
    kv_capacity_tokens: Whole | None = None,
    max_batch: Whole | None = None,
    warmup: Whole = 2,
    no_probe: Flag = False,
    step_log: Many = (),
    slo_ttft_ms: float | None = None,
    slo_tpot_ms: float | None = None,
    request_timeout_secs: float | None = None,
    drain_timeout_secs: float | None = None,
    scrape_interval_secs: float = 0.25,
    on_failure: Literal["stop", "degrade"] | None = None,
    ca_file: str | None = None,
    insecure: Flag = False,
    worker_api_key: str | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int | None:
    """Replay a trace against a real engine under several policies, and keep what was measured.

    Each policy is the one that was simulated and that `equipoise serve` runs: it places requests in this process, and
    they go straight to the engine with their rank. The policy `engine` names no rank: the engine chooses.

    Parameters
    ----------
    url
        Where the engine is: http://HOST:PORT, with options as for --worker-urls of serve, in quotes. Several: several
        instances.
    engine
        Whose pins and loads it understands: vllm, sglang, dynamo, trtllm or a plug-in's.
    trace
        Preset, file or folder.
    policies
        Policies to compare, or engine. Repeatable, and separated by commas.
    repeats
        How often each policy is run; they take turns.
    output_dir
        Folder for what is measured.
    resume
        Folder of a run that was stopped: what is missing is run. Only the key, the certificates, the patience and
        --on-failure can be given anew.
    requests
        Length of the trace: a preset has 200 here, a file all it has; a longer file is cut.
    seed
        Of a preset, and of the policies in the first repeat; the others count on.
    mode
        open: at the times of the trace; closed: so many at once; sessions: turns follow each other.
    scale
        Factor on arrival and think times: 2 is half as fast.
    concurrency
        Requests under way at any time (mode closed).
    prompt_scale
        Factor on the length of prompts.
    output_scale
        Factor on the length of outputs.
    prefixes
        Let prompts share beginnings as the trace's prefix blocks or sessions say.
    prompts
        Send token ids, or words where the engine takes no ids.
    token_ids
        Ids that prompts are made of, FIRST:END, without END.
    route
        Where requests go: /v1/completions, or /generate with SGLang. Default: the first.
    model
        Name of the model. Default: the one the engine names.
    dp_size
        Ranks of an instance. Default: as many as the engine shows.
    cost
        Step cost that policies decide by: a preset or a file.
    kv_capacity_tokens
        Tokens a rank holds, where the engine does not say.
    max_batch
        Requests a rank runs at once, where the engine does not say.
    warmup
        Requests a rank that are sent before the first run and not measured.
    no_probe
        Do not measure steps under known loads first.
    step_log
        A log or table of the engine's own steps, read when all is done. Repeatable.
    slo_ttft_ms
        Time to first token that a good request meets.
    slo_tpot_ms
        Time per token after it that a good request meets.
    request_timeout_secs
        How long a request may take. Default: 600.
    drain_timeout_secs
        How long to wait between runs until the engine is empty, and for one that died to come back. Default: 120.
    scrape_interval_secs
        From one look at the loads of the ranks to the next.
    on_failure
        stop: the first request that fails ends everything, and it can be resumed. degrade: go on, and say so. Default:
        stop.
    ca_file
        Authorities (PEM) that sign the certificate of an https:// engine. Default: the system's.
    insecure
        Believe any certificate.
    worker_api_key
        The engine's key. Default: EQUIPOISE_WORKER_API_KEY.
    """
    try:
        from equipoise.live.describe import plan_of
        from equipoise.live.plan import LivePlan
    except ImportError as error:
        raise InputError(
            f"talking to engines needs {error.name or 'more'}",
            fix="pip install 'equipoise[serve]', in a checkout '.[serve]'",
        ) from error
    patience: dict[str, Any] = {
        "timeout_s": request_timeout_secs,
        "drain_timeout_s": drain_timeout_secs,
        "on_failure": on_failure,
        "ca_file": ca_file,
        "insecure": insecure or None,
        "worker_key": worker_api_key or os.environ.get(KEY) or None,
    }
    if resume is not None:
        if url or trace or output_dir is not None:
            raise InputError(
                "a run is resumed as it was begun",
                where="--resume",
                fix="leave out --url, --trace, --output-dir",
            )
        plan, about = plan_of(resume, **patience)
        _check_policies(plan.policies)
        return finish(resume, carry_out(plan, resume, about, quiet=quiet or as_json), as_json=as_json)
    if trace is None or output_dir is None or not url:
        missing = [n for n, v in (("--url", url), ("--trace", trace), ("--output-dir", output_dir)) if not v]
        raise InputError(
            f"{' and '.join(missing)} not given", where="equipoise live", fix="see equipoise live --help"
        )
    check_folder(output_dir)
    if (output_dir / "run.json").exists():
        raise InputError(
            "holds a live run already", where=str(output_dir), fix="use --resume, or another folder"
        )
    from equipoise import cost as costs
    from equipoise.engines import names
    from equipoise.engines.workers import parse_line
    from equipoise.traces import load

    if engine not in names():
        raise InputError(f"no engine is called {engine!r}", where="--engine", fix=nearest(engine, names()))
    chosen = split(policies, "--policies")
    _check_policies(chosen)
    costs.load(cost)
    from equipoise.live.plan import scaled
    from equipoise.traces.resolve import preset_of

    length = requests if requests is not None or preset_of(trace) is None else 200
    whole = load(trace, seed=seed, requests=length)
    cut = [f"{len(whole):,} requests of {trace}"]
    if prompt_scale != 1.0:
        cut.append(f"prompts times {prompt_scale:g}")
    if output_scale != 1.0:
        cut.append(f"outputs times {output_scale:g}")
    plan = LivePlan(
        trace=scaled(whole, prompt_scale, output_scale),
        cut=", ".join(cut),
        workers=tuple(parse_line(one, "--url") for one in url),
        engine=engine,
        policies=tuple(chosen),
        repeats=repeats,
        first_seed=seed,
        mode=mode,
        scale=scale,
        concurrency=concurrency,
        prefixes=prefixes,
        prompts=prompts,
        token_ids=_span(token_ids),
        route=route or "/v1/completions",
        model=model,
        dp_size=dp_size or 0,
        cost=cost,
        kv_capacity_tokens=kv_capacity_tokens,
        max_batch=max_batch,
        warmup_requests=warmup,
        probe=not no_probe,
        step_logs=tuple(step_log),
        scrape_period_s=scrape_interval_secs,
        ttft_slo_ms=slo_ttft_ms,
        tpot_slo_ms=slo_tpot_ms,
        **{k: v for k, v in patience.items() if v is not None},
    )
    return finish(output_dir, carry_out(plan, output_dir, None, quiet=quiet or as_json), as_json=as_json)


def _check_policies(policies: Sequence[str]) -> None:
    from equipoise.live.plan import ENGINE
    from equipoise.policies import parse

    for text in policies:
        if text != ENGINE:
            parse(text)


def _span(text: str) -> tuple[int, int]:
    first, colon, end = text.partition(":")
    if not (colon and first.isascii() and first.isdigit() and end.isascii() and end.isdigit()):
        raise InputError(f"{text[:40]!r} is no range of ids", where="--token-ids", fix="such as 10:250")
    return int(first[:12]), int(end[:12])
