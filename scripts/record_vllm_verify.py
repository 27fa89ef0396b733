"""Record how vLLM's own schedulers take trimmed drafts: run in an environment that has vLLM, no model is run.

    PYTHONPATH=src PYTHON_OF_VLLM scripts/record_vllm_verify.py tests/engines/fixtures/vllm-verify.json

Two ranks, each a real scheduler with its real KV manager, n-gram drafts configured; the model behind them is played:
the next token of a request is a function of the request and its position, so what must come out is known. Written are
the shapes of each step, and whether what came out is what comes out without control.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

DRAFTS, BLOCK, STEPS = 4, 16, 24
LONGEST = 4096
PROMPTS = ({"long-0": 3000, "long-1": 2500}, {"short-0": 40, "short-1": 90, "short-2": 65})
CHANCE = {"long-0": 0.9, "long-1": 0.6, "short-0": 0.9, "short-1": 0.7, "short-2": 0.4}
OUTPUT = 40
FIXED, PER_QUERY, PER_100K = 100.0, 4.0, 300.0
"""Price of a step, a query token, and 100,000 context tokens."""
SEEN = ("request_id", "num_computed_tokens", "num_tokens", "is_prefill_chunk")


def right(name: str, at: int) -> int:
    """The model's token number ``at`` of a request."""
    return random.Random(f"{name} {at}").randrange(10, 900)


def drafted(name: str, at: int, step: int) -> list[int]:
    """Drafts for the tokens from number ``at`` on; each is right with the request's chance."""
    draw = random.Random(f"{name} {at} {step}")
    return [right(name, at + j) if draw.random() < CHANCE[name] else 5 for j in range(DRAFTS)]


def new_scheduler(kind: type[Any], folder: str, asynchronous: bool) -> Any:
    import torch
    from vllm.config import (
        CacheConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=LONGEST)
    config = VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=LONGEST,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            async_scheduling=asynchronous,
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=False),
        # n-gram on a GPU is the draft method that schedulers of both kinds take without a second model
        speculative_config=SpeculativeConfig(
            method="ngram_gpu" if asynchronous else "ngram",
            num_speculative_tokens=DRAFTS,
            prompt_lookup_max=3,
            target_model_config=model,
            target_parallel_config=ParallelConfig(),
        ),
    )
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = 2000
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=2000, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return kind(config, cache, StructuredOutputManager(config), block_size=BLOCK)


def add_requests(scheduler: Any, prompts: dict[str, int]) -> None:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    for name, tokens in prompts.items():
        sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
        scheduler.add_request(Request(name, [3] * tokens, sampling, None))


class Rank:
    """A scheduler and the model played behind it."""

    def __init__(self, scheduler: Any, prompts: dict[str, int], asynchronous: bool) -> None:
        self.scheduler, self.asynchronous = scheduler, asynchronous
        self.out: dict[str, list[int]] = {name: [] for name in prompts}
        self.drafts: dict[str, list[int]] = {}
        self.known = dict.fromkeys(prompts, 0)
        self.running: deque[tuple[Any, Any]] = deque()
        self.shapes: list[dict[str, Any]] = []
        add_requests(scheduler, prompts)

    def step(self, step: int) -> None:
        """Schedule, run, and take in an output: this step's, or the last one's where vLLM schedules ahead."""
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        scheduler = self.scheduler
        if scheduler.has_requests():
            before = {r.request_id: len(r.spec_token_ids) for r in scheduler.running}
            computed = {r.request_id: r.num_computed_tokens for r in scheduler.running}
            scheduled = scheduler.schedule()
            names = list(scheduled.num_scheduled_tokens)
            sampled = [self._sample(name, scheduled) for name in names]
            rows = {name: i for i, name in enumerate(names)}
            self.running.append((scheduled, ModelRunnerOutput(names, rows, sampled)))
            self.drafts = {n: drafted(n, self.known[n], step) for n in names if self.known[n]}
            if names:
                self.shapes.append(self._shape(step, scheduled, before, computed, sampled))
        ahead = self.asynchronous and scheduler.has_requests()
        if len(self.running) > ahead:
            scheduled, output = self.running.popleft()
            scheduler.update_from_output(scheduled, output)
            for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
                self.out[name] += tokens
                del self.out[name][OUTPUT:]  # a step that was in flight when the request ended
        if not self.asynchronous:
            scheduler.update_draft_token_ids(DraftTokenIds(list(self.drafts), list(self.drafts.values())))

    def _sample(self, name: str, scheduled: Any) -> list[int]:
        """Tokens a greedy model emits: right ones up to the first wrong draft, and its own."""
        request = self.scheduler.requests[name]
        if request.is_prefill_chunk:
            return []
        given = scheduled.scheduled_spec_decode_tokens.get(name, [])
        drafts = self.drafts.get(name, [])[: len(given)]
        if not self.asynchronous:
            assert drafts == list(given), (drafts, given)
        at, tokens = self.known[name], []
        for draft in drafts:
            tokens.append(right(name, at + len(tokens)))
            if draft != tokens[-1]:
                break
        else:
            tokens.append(right(name, at + len(tokens)))
        self.known[name] += len(tokens)
        return tokens

    def _shape(self, step: int, scheduled: Any, before: Any, computed: Any, sampled: Any) -> dict[str, Any]:
        blocks = self.scheduler.kv_cache_manager.get_block_ids
        return {
            "step": step,
            "num_scheduled_tokens": dict(scheduled.num_scheduled_tokens),
            "total_num_scheduled_tokens": scheduled.total_num_scheduled_tokens,
            "scheduled_spec_decode_tokens": {
                name: list(drafts) for name, drafts in scheduled.scheduled_spec_decode_tokens.items()
            },
            "finished_req_ids": sorted(scheduled.finished_req_ids),
            "spec_token_ids_before": before,
            "num_computed_tokens_before": computed,
            "blocks": {name: len(blocks(name)[0]) for name in scheduled.num_scheduled_tokens},
            "sampled_token_ids": [list(tokens) for tokens in sampled],  # vLLM shortens its own
        }


def run(folder: str, asynchronous: bool, controlled: bool) -> tuple[list[Rank], list[dict[str, Any]]]:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.version import __version__

    kind = AsyncScheduler if asynchronous else Scheduler
    if controlled:
        from equipoise.control import VerifyPrice
        from equipoise.cost import StepCost, Term
        from equipoise.engines.verify.vllm import scheduler_class

        terms = Term("attention", 1.0, 1.0, PER_100K), Term("ffn", 1.0, PER_QUERY)
        price = VerifyPrice(StepCost("test", terms, FIXED))
        kind = scheduler_class(kind, price, __version__)
    ranks = [Rank(new_scheduler(kind, folder, asynchronous), prompts, asynchronous) for prompts in PROMPTS]
    plans = []
    for step in range(STEPS if controlled else 10 * STEPS):
        for rank in ranks:
            rank.step(step)
        if controlled:
            plans += exchange(ranks)
    return ranks, plans


def exchange(ranks: list[Rank]) -> list[dict[str, Any]]:
    """What a collective does, in one process: every rank publishes, then every rank gets all."""
    controls = [rank.scheduler.equipoise for rank in ranks]
    messages: list[bytes] = []
    stand: list[list[Any]] = []
    for control, rank in zip(controls, ranks, strict=True):
        messages.append(control.publish(rank.scheduler.running))
        stand.append([[getattr(r, name) for name in SEEN] for r in rank.scheduler.running])
    for control in controls:
        control.agree(messages)
    plans = {control.control.plan.to_bytes() for control in controls}
    assert len(plans) == 1
    plan = controls[0].control.plan
    steps = {"observed_step": plan.observed_step, "for_step": plan.for_step}
    return [{**steps, "cap_queries": plan.cap_queries, "running": stand}]


def main(target: str) -> None:
    from vllm.version import __version__

    with tempfile.TemporaryDirectory() as folder:
        shape = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
            "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 1000,
            "max_position_embeddings": LONGEST, "torch_dtype": "float32",
        }  # fmt: skip
        Path(folder, "config.json").write_text(json.dumps(shape))
        written: dict[str, Any] = {
            "vllm": __version__,
            "drafts": DRAFTS,
            "block_size": BLOCK,
            "prompts": PROMPTS,
            "price": [FIXED, PER_QUERY, PER_100K],
        }
        for name, asynchronous in (("Scheduler", False), ("AsyncScheduler", True)):
            plain, _ = run(folder, asynchronous, controlled=False)
            ranks, plans = run(folder, asynchronous, controlled=True)
            for rank, other in zip(ranks, plain, strict=True):
                for request, tokens in rank.out.items():
                    assert tokens
                    assert tokens == other.out[request][: len(tokens)], (name, request)
                    assert tokens == [right(request, i) for i in range(len(tokens))], (name, request)
            written[name] = {"plans": plans, "ranks": [rank.shapes for rank in ranks]}
            cut = sum(
                sum(s["spec_token_ids_before"].values())
                - sum(len(d) for d in s["scheduled_spec_decode_tokens"].values())
                for rank in ranks
                for s in rank.shapes
            )
            print(
                f"{name}: {len(plans)} plans, {cut} drafts cut, outputs as without control", file=sys.stderr
            )
    Path(target).write_text(json.dumps(written, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
