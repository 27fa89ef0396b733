"""Record what SGLang's DSpark planner decides, alone and with a plan: run where torch is, on a CPU.

    pip download --no-deps sglang==0.5.23
    PYTHONPATH=src python scripts/record_sglang_verify.py sglang-0.5.23-....whl
    tests/engines/fixtures/sglang-verify.json

The planner, its layouts and the torch twins of its kernels are the wheel's own source; the engine around them is
played, so the survivals are made up. Two ranks in two threads, their collectives a barrier.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import sys
import threading
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

SPECULATIVE = "sglang.srt.speculative"
REAL = (
    f"{SPECULATIVE}.dspark_components.dspark_planner",
    f"{SPECULATIVE}.dspark_components.dspark_sps",
    f"{SPECULATIVE}.ragged_verify",
    "sglang.kernels.ops.speculative.dspark.dspark_schedule",
    "sglang.kernels.ops.speculative.dspark.dispatch",
    "sglang.kernels.ops.speculative.ragged_verify_kernels",
    "sglang.srt.plugins.hook_registry",
)
GAMMA, STEPS, RANKS = 5, 6, 2
GRAPHS = [8, 16, 24, 32, 40, 48]
CONTEXT = ([520_000, 380_000, 610_000, 440_000], [900, 2_100, 700, 1_500, 3_000])
RANK = threading.local()


class Played(ModuleType):
    """A module of which everything is there and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, MagicMock(name=name))
        return vars(self)[name]


class Wheel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The real modules from the wheel; everything else of the engine, and triton, played."""

    def __init__(self, wheel: str) -> None:
        self._archive = zipfile.ZipFile(wheel)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Whether a module is one of ours."""
        if name.split(".")[0] in ("sglang", "triton"):
            return importlib.machinery.ModuleSpec(name, self, is_package=name not in REAL)
        return None

    def create_module(self, spec: Any) -> ModuleType | None:
        """An empty one for real source, a played one for the rest."""
        return None if spec.name in REAL else Played(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run real source."""
        if module.__name__ in REAL:
            path = module.__name__.replace(".", "/") + ".py"
            exec(compile(self._archive.read(path), path, "exec"), module.__dict__)
        elif module.__name__ == "triton":
            module.jit = lambda function: function  # type: ignore[attr-defined]


class Barrier:
    """An all-gather between threads."""

    def __init__(self) -> None:
        self._barrier, self._parts = threading.Barrier(RANKS), [None] * RANKS

    def gather(self, part: Any) -> list[Any]:
        """Hand over this rank's part and get all."""
        self._barrier.wait(30)
        self._parts[RANK.number] = part
        self._barrier.wait(30)
        return list(self._parts)


def play_the_engine(planner: ModuleType, barrier: Barrier, table: str) -> None:
    """Settings and collectives that the planner asks its engine for."""
    import torch

    spec = SimpleNamespace(
        speculative_dspark_align_verify_tokens_to_graph_tier=False,
        speculative_dspark_confidence_sts_path=None,
        speculative_dspark_sps_table_path=table,
    )
    parallel = SimpleNamespace(
        attn_tp_size=1, attn_cp_size=1, pp_size=1, tp_group=SimpleNamespace(cpu_group=None)
    )
    schedule = SimpleNamespace(disable_overlap_schedule=False, max_running_requests=8)
    off = SimpleNamespace(get=lambda: False)
    names = planner.__dict__
    names["get_spec"], names["get_parallel"] = (lambda: spec), (lambda: parallel)
    names["get_schedule"] = lambda: schedule
    names["get_disagg"] = lambda: SimpleNamespace(disaggregation_mode="null")
    names["is_dp_attention_enabled"] = names["require_mlp_tp_gather"] = lambda: True
    names["read_ragged_verify_mode"] = lambda: names["RaggedVerifyMode"].COMPACT
    names["CONFIDENCE_RELAY_RING_LAG"] = 1
    names["resolve_level"], names["InvariantCheckLevel"] = (lambda: 0), SimpleNamespace(WARN=1)
    names["envs"] = SimpleNamespace(
        SGLANG_SCHEDULER_SKIP_ALL_GATHER=off,
        SGLANG_DSPARK_STS_COLLECT_PATH=off,
        SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS=SimpleNamespace(get=lambda: 1),
        SGLANG_DSPARK_DEBUG_CONFIDENCE_PREFIX_SCHEDULER=SimpleNamespace(get=lambda: True),
    )
    names["load_sps_table_from_path"] = lambda path: names["SpsCostTable"].from_json(Path(path).read_text())

    def all_gather_single(gathered: Any, part: Any, group: Any) -> None:
        gathered.copy_(torch.cat(barrier.gather(part.clone())))

    names["all_gather_single"] = all_gather_single
    torch.distributed.get_world_size = lambda group=None: RANKS  # type: ignore[assignment]


def new_planner(planner: ModuleType, rank: int) -> Any:
    import torch

    generations = torch.ones(16, dtype=torch.int64)
    runner = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_generation=generations, req_to_token=torch.zeros(16, 1)),
        decode_cuda_graph_runner=SimpleNamespace(
            ragged_verify_mode=True, capture_num_tokens=GRAPHS, max_bs=8
        ),
    )
    return planner.DSparkVerifyPlanner(
        draft_model=SimpleNamespace(confidence_head=object()),
        gamma=GAMMA,
        model_runner=runner,
        device="cpu",
        tp_rank=rank,
        verify_num_draft_tokens=GAMMA + 1,
        tp_sync=SimpleNamespace(sync=lambda site, lens: None),
    )


def confidence(rank: int, step: int) -> Any:
    import torch

    rng = np.random.default_rng([rank, step])
    level = 0.55 + 0.4 * np.random.default_rng(rank).random((len(CONTEXT[rank]), 1))
    drawn = level - 0.04 * np.arange(GAMMA) + rng.normal(0, 0.03, (len(CONTEXT[rank]), GAMMA))
    return torch.tensor(np.clip(drawn, 0.05, 0.99).round(4), dtype=torch.float32)


def run_rank(planner: Any, rank: int, steps: list[dict[str, Any]], log: list[str]) -> None:
    """What `Scheduler.run_batch` and `DSparkWorkerV2._forward_decode` ask of the planner, step by step."""
    import torch

    RANK.number, rows = rank, torch.arange(1, 1 + len(CONTEXT[rank]), dtype=torch.int64)
    for step in range(1, STEPS):
        before, now = confidence(rank, step - 1), confidence(rank, step)
        generation = torch.ones(len(rows), dtype=torch.int64)
        if step == 3:
            generation[0] = 0  # another request had this row then
        lengths = torch.tensor(CONTEXT[rank], dtype=torch.int64) + 3 * step
        batch = SimpleNamespace(
            spec_info=SimpleNamespace(verify_token_budget=None),
            forward_mode=SimpleNamespace(is_extend=lambda: False),
            is_extend_in_batch=False,
            req_pool_indices_cpu=rows,
            seq_lens_cpu=lengths,
            spec_verify_tier_num_tokens=-1,
            global_spec_verify_tier_num_tokens=None,
            batch_size=lambda: len(rows),
        )
        resolved = SimpleNamespace(confidence=before, generation=generation)
        planner.prepare_verify_budget(batch, SimpleNamespace(resolve_confidence_cpu=lambda _, r=resolved: r))
        module = sys.modules[type(planner).__module__]
        tier = module.dp_global_verify_tier_num_tokens(
            global_tier_num_tokens=batch.global_spec_verify_tier_num_tokens
        )
        seen = len(log)
        layout = planner.schedule_layout(
            req_pool_indices=rows,
            prefix_lens=lengths,
            device="cpu",
            confidence=now,
            budget=batch.spec_info.verify_token_budget,
            global_num_reqs=max(len(c) for c in CONTEXT),
            dp_tier_num_tokens=tier,
        )
        steps.append(
            {
                "req_pool_indices": rows.tolist(),
                "seq_lens": lengths.tolist(),
                "lagged_confidence": before.numpy().astype(float).round(4).tolist(),
                "lagged_generation": generation.tolist(),
                "current_generation": [1] * len(rows),
                "verify_token_budget": batch.spec_info.verify_token_budget,
                "spec_verify_tier_num_tokens": batch.spec_verify_tier_num_tokens,
                "global_spec_verify_tier_num_tokens": batch.global_spec_verify_tier_num_tokens,
                "verify_lens": layout.verify_lens.tolist(),
                "graph_num_tokens": layout.graph_num_tokens,
                "log": log[seen:],
            }
        )
        assert sum(steps[-1]["verify_lens"]) <= layout.graph_num_tokens


def run(module: ModuleType, barrier: Barrier, controlled: bool, version: str) -> list[list[dict[str, Any]]]:
    planners = [new_planner(module, rank) for rank in range(RANKS)]
    if controlled:
        from equipoise.control import VerifyPrice
        from equipoise.cost import load
        from equipoise.engines.verify.sglang import PlannerControl, install

        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        controls = [
            PlannerControl(VerifyPrice(load("h200"), GRAPHS), GAMMA, barrier.gather) for _ in range(RANKS)
        ]

        class ThisRank:  # one process a rank in the engine: hooks of a class are then one rank's
            def prepare(self, *args: Any) -> None:
                controls[RANK.number].prepare(*args)

            def lengths(self, *args: Any, **kwargs: Any) -> Any:
                return controls[RANK.number].lengths(*args, **kwargs)

        install(module, hooks, version, ThisRank())  # type: ignore[arg-type]
        hooks.HookRegistry.apply_hooks()
    logs: list[list[str]] = [[] for _ in range(RANKS)]

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "DSPARK-CPS" in record.getMessage():
                logs[RANK.number].append(record.getMessage())

    keep = Keep()
    module.logger.addHandler(keep)
    module.logger.setLevel(logging.INFO)
    steps: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    failed: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            run_rank(planners[rank], rank, steps[rank], logs[rank])
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    module.logger.removeHandler(keep)
    if failed:
        raise failed[0]
    return steps


def main(wheel: str, target: str) -> None:
    import torch  # before anything of triton is played  # noqa: F401

    version = Path(wheel).name.split("-")[1]
    sys.meta_path.insert(0, Wheel(wheel))
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        del sys.modules[name]
    module = importlib.import_module(REAL[0])
    barrier = Barrier()
    table = Path(target).with_suffix(".table")
    tokens = list(range(1, 65))
    seconds = [0.010 + 0.00012 * t for t in tokens]
    table.write_text(
        json.dumps(
            {
                "sample_batch_tokens": tokens,
                "sample_steps_per_sec": [1 / s for s in seconds],
                "max_batch_tokens": 64,
            }
        )
    )
    play_the_engine(module, barrier, str(table))
    alone = run(module, barrier, controlled=False, version=version)
    planned = run(module, barrier, controlled=True, version=version)
    table.unlink()
    found = {"sglang": version, "gamma": GAMMA, "graphs": GRAPHS, "alone": alone, "planned": planned}
    Path(target).write_text(json.dumps(found, separators=(",", ":")) + "\n")
    print("alone", [[sum(s["verify_lens"]) for s in rank] for rank in alone], file=sys.stderr)
    print("planned", [[sum(s["verify_lens"]) for s in rank] for rank in planned], file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:3])
