"""vLLM and SGLang for tests of the plug-ins: fakes with the signatures of the real ones, or the real ones' own source.

``EQUIPOISE_TEST_VLLM`` and ``EQUIPOISE_TEST_SGLANG`` name wheels (several: separated by ``:``), as from
``pip download --no-deps vllm==0.33.0``. The classes that plug-ins touch are cut out of them and run as they are; only
what is around them, sockets and processes, is played. Nothing of the wheels is installed or imported.
"""

from __future__ import annotations
import __future__

import ast
import enum
import inspect
import os
import sys
import types
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

HOW = "set {} to a wheel, as from: pip download --no-deps {}"


def wheels(variable: str, requirement: str) -> list[Any]:
    """Parameters of a test: every wheel named, or one that skips and says how."""
    named = [part for part in os.environ.get(variable, "").split(":") if part]
    if not named:
        skip = pytest.mark.skip(reason=HOW.format(variable, requirement))
        return [pytest.param(None, marks=skip, id="no wheel")]
    return [pytest.param(Path(part), id=Path(part).name.split("-cp")[0]) for part in named]


def source(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def cut(text: str, names: Iterable[str], into: dict[str, Any]) -> None:
    """Run some definitions of a source, in their order, in a namespace."""
    wanted = set(names)
    tree = ast.parse(text)
    kinds = (ast.ClassDef, ast.FunctionDef)
    tree.body = [part for part in tree.body if isinstance(part, kinds) and part.name in wanted]
    found = {getattr(part, "name", "") for part in tree.body}
    assert wanted <= found, wanted - found
    # names in annotations are not looked up: nothing here codes a message
    exec(compile(tree, "<wheel>", "exec", flags=__future__.annotations.compiler_flag), into)


# -- vLLM -----------------------------------------------------------------------------------------------------------

FINISH = ("stop", "length", "abort", "error", "repetition")


class FinishReason(enum.IntEnum):
    STOP, LENGTH, ABORT, ERROR, REPETITION = range(5)

    def __str__(self) -> str:
        return FINISH[self.value]


class Output(msgspec.Struct):
    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None


class FakeRequest(msgspec.Struct):
    """The fields of `EngineCoreRequest` (0.32, 0.33) that matter here, in its order."""

    request_id: str
    prompt_token_ids: list[int] | None
    mm_features: Any
    sampling_params: Any
    pooling_params: Any
    arrival_time: float
    lora_request: Any
    cache_salt: str | None
    data_parallel_rank: int | None
    prompt_embeds: Any = None
    resumable: bool = False
    session_id: str | None = None


class FakeOutputs(msgspec.Struct):
    engine_index: int = 0
    outputs: list[Any] = []
    finished_requests: set[str] | None = None


class ClientBase:
    """What is around the client class: no sockets, what it would send is kept."""

    def __init__(
        self, vllm_config: Any, executor_class: Any, log_stats: bool, client_addresses: Any = None,
        client_count: int = 1, client_index: int = 0, renderer: Any = None,
    ) -> None:  # fmt: skip
        ranks = vllm_config.ranks
        self.vllm_config, self.client_count, self.client_index = vllm_config, client_count, client_index
        self.engine_ranks_managed = list(range(ranks))
        self.core_engines = [rank.to_bytes(2, "little") for rank in range(ranks)]
        self.lb_engines: list[list[float]] = [[0, 0, 0.0] for _ in range(ranks)]
        self.resources = SimpleNamespace(engine_dead=False)
        self.stats_update_address = f"ipc:///{id(vllm_config)}"
        self.aborted: list[tuple[list[str], bytes]] = []

    async def _send_input(self, kind: Any, request: Any, engine: Any = None) -> None:
        self.aborted.append((list(request), engine))


def fake_core_client() -> ModuleType:
    """`vllm.v1.engine.core_client` with a client of the same signatures that takes the emptiest rank."""
    module = ModuleType("vllm.v1.engine.core_client")

    class DPLBAsyncMPClient(ClientBase):
        def __init__(
            self, vllm_config: Any, executor_class: Any, log_stats: bool, client_addresses: Any = None,
            client_count: int = 1, client_index: int = 0, renderer: Any = None,
        ) -> None:  # fmt: skip
            self.reqs_in_flight: dict[str, bytes] = {}
            self.engine_inflight: Counter[bytes] = Counter()
            super().__init__(
                vllm_config, executor_class, log_stats, client_addresses, client_count, client_index, renderer
            )

        def get_core_engine_for_request(self, request: Any) -> bytes:
            if (engine := self.reqs_in_flight.get(request.request_id)) is not None:
                return engine
            rank = request.data_parallel_rank
            if rank is None:
                rank = min(
                    range(len(self.core_engines)), key=lambda r: self.engine_inflight[self.core_engines[r]]
                )
            engine = self.core_engines[rank]
            self.reqs_in_flight[request.request_id] = engine
            self.engine_inflight[engine] += 1
            return engine

        @staticmethod
        async def process_engine_outputs(self: Any, outputs: Any) -> None:
            for req_id in outputs.finished_requests or ():
                if (engine := self.reqs_in_flight.pop(req_id, None)) is not None:
                    self.engine_inflight[engine] -= 1

        async def abort_requests_async(self, request_ids: list[str]) -> None:
            for req_id in request_ids:
                if engine := self.reqs_in_flight.get(req_id):
                    await self._send_input(None, [req_id], engine)

    module.DPLBAsyncMPClient = DPLBAsyncMPClient  # type: ignore[attr-defined]
    module.EngineCoreRequest = FakeRequest  # type: ignore[attr-defined]
    module.EngineCoreOutputs = FakeOutputs  # type: ignore[attr-defined]
    return module


def real_core_client(wheel: Path) -> tuple[ModuleType, str]:
    """The client class and the messages of a wheel, and its version."""
    module = ModuleType("vllm.v1.engine.core_client")
    space = module.__dict__
    space |= {
        "Any": Any, "Counter": Counter, "defaultdict": defaultdict, "enum": enum, "msgspec": msgspec, "sys": sys,
        "DPAsyncMPClient": ClientBase, "EngineIdentity": bytes, "EngineCoreRequestType": SimpleNamespace(ABORT="abort"),
        "get_late_interaction_engine_index": lambda params, engines: None if params is None else 1,
        "FINISH_REASON_STRINGS": FINISH, "time": __import__("time"),
    }  # fmt: skip
    cut(
        source(wheel, "vllm/v1/engine/__init__.py"),
        ("FinishReason", "EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs", "ReconfigureRankType"),
        space,
    )
    cut(source(wheel, "vllm/v1/engine/core_client.py"), ("DPLBAsyncMPClient",), space)
    version = next(
        line.split("'")[1]
        for line in source(wheel, "vllm/_version.py").splitlines()
        if line.startswith("__version__ = ")
    )
    return module, version


# -- SGLang ---------------------------------------------------------------------------------------------------------


class Kind(enum.Enum):
    BEFORE, AFTER, AROUND, REPLACE = "before", "after", "around", "replace"


def fake_hooks() -> ModuleType:
    """`sglang.srt.plugins.hook_registry`: the same call, applied at once to a module given by name."""
    hooks = ModuleType("sglang.srt.plugins.hook_registry")

    class HookRegistry:
        found: ClassVar[list[tuple[str, Callable[..., Any], Kind]]]

        @classmethod
        def register(
            cls, target: str, hook: Callable[..., Any], hook_type: Kind = Kind.AFTER, *, source: Any = None
        ) -> None:
            cls.found.append((target, hook, hook_type))

        @classmethod
        def apply_hooks(cls) -> None:
            for target, hook, kind in cls.found:
                path, owner_name, name = target.rsplit(".", 2)
                owner = getattr(sys.modules[path], owner_name)
                setattr(owner, name, _wrapped(owner.__dict__[name], hook, kind))

    HookRegistry.found = []
    hooks.HookRegistry, hooks.HookType = HookRegistry, Kind  # type: ignore[attr-defined]
    return hooks


def _wrapped(original: Callable[..., Any], hook: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    def after(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    def around(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return {Kind.AFTER: after, Kind.AROUND: around}[kind]


def real_hooks(wheel: Path) -> ModuleType:
    hooks = ModuleType("sglang.srt.plugins.hook_registry")
    exec(compile(source(wheel, "sglang/srt/plugins/hook_registry.py"), "<wheel>", "exec"), hooks.__dict__)
    return hooks


class LoadBalanceMethod(enum.Enum):
    ROUND_ROBIN, TOTAL_TOKENS = 1, 4


def parallel(ranks: int, attn_dp: bool, method: str) -> SimpleNamespace:
    return SimpleNamespace(
        load_balance_method=method, num_dp_ranks=ranks, node_rank=0, attn_dp_enabled=attn_dp, max_ep_size=None,
        tp_size=1, enable_dp_attention_local_control_broadcast=False,
    )  # fmt: skip


def fake_controller(state: SimpleNamespace) -> ModuleType:
    """`sglang.srt.managers.data_parallel_controller` with a controller of the same signatures."""
    module = ModuleType("sglang.srt.managers.data_parallel_controller")
    sent: list[tuple[Any, Any]] = []

    class DPBudget:
        def __init__(self, num_dp_ranks: int) -> None:
            self.num_dp_ranks = num_dp_ranks
            self.total_requests, self.total_tokens = [0] * num_dp_ranks, [0] * num_dp_ranks

        def update_budget(self, loads: Any) -> None:
            for load in loads:
                self.total_tokens[load.dp_rank] = load.num_total_tokens

    class DataParallelController:
        def __init__(
            self, server_args: Any, port_args: Any, run_scheduler_process_func: Any, prelaunched_schedulers: Any = None
        ) -> None:  # fmt: skip
            self.load_balance_method = LoadBalanceMethod[state.load_balance_method.upper()]
            self.dp_budget = DPBudget(state.num_dp_ranks)
            self.workers = [f"socket {rank}" for rank in range(state.num_dp_ranks)]
            self.status = [True] * state.num_dp_ranks
            self._active_workers = list(range(state.num_dp_ranks))
            self.max_total_num_tokens = 100_000

        def maybe_external_dp_rank_routing(self, req: Any) -> bool:
            if req.routed_dp_rank is None:
                return False
            if req.routed_dp_rank not in self._active_workers:
                raise ValueError(f"DP rank {req.routed_dp_rank} is not active.")
            module.sock_send(self.workers[req.routed_dp_rank], req)  # type: ignore[attr-defined]
            return True

        def total_tokens_scheduler(self, req: Any) -> None:
            if self.maybe_external_dp_rank_routing(req):
                return
            totals = self.dp_budget.total_tokens
            module.sock_send(self.workers[totals.index(min(totals))], req)  # type: ignore[attr-defined]

    module.DPBudget, module.DataParallelController = DPBudget, DataParallelController  # type: ignore[attr-defined]
    module.sent, module.sock_send = sent, lambda socket, req: sent.append((socket, req))  # type: ignore[attr-defined]
    module.get_parallel = lambda: state  # type: ignore[attr-defined]
    return module


MESSAGES = (
    "TokenizedGenerateReqInput", "TokenizedEmbeddingReqInput", "BatchTokenizedGenerateReqInput", "ProfileReq",
    "BatchTokenizedEmbeddingReqInput", "BlockReqInput", "ActiveRanksOutput", "ElasticScaleUpdateReq",
)  # fmt: skip
"""What a controller tells apart; none comes here."""


def real_controller(wheel: Path, state: SimpleNamespace) -> tuple[ModuleType, str]:
    """The controller of a wheel, which launches nothing, and its version."""
    module = ModuleType("sglang.srt.managers.data_parallel_controller")
    sent: list[tuple[Any, Any]] = []
    nothing = SimpleNamespace
    elastic = nothing(moe=nothing(elastic_ep_backend=None))
    module.__dict__.update(
        Enum=enum.Enum, auto=enum.auto, Callable=Callable, threading=__import__("threading"), sent=sent,
        time=__import__("time"), logger=__import__("logging").getLogger("sglang.test"), attn_replica_size=lambda: 1,
        zmq=nothing(Context=lambda n: None, PULL=1, PUSH=2), get_parallel=lambda: state, get_exec=lambda: elastic,
        get_device=lambda: nothing(soft_watchdog_timeout=None), get_zmq_socket=lambda *a: None,
        get_observability=lambda: nothing(enable_metrics=False), TypeBasedDispatcher=lambda pairs: _Dispatcher(),
        envs=nothing(SGLANG_TEST_STUCK_DP_CONTROLLER=nothing(get=lambda: 0)), Watchdog=nothing(create=lambda **k: None),
        create_load_snapshot_reader=lambda *a, **k: None, sock_send=lambda socket, req: sent.append((socket, req)),
        **dict.fromkeys(MESSAGES),
    )  # fmt: skip
    text = source(wheel, "sglang/srt/managers/data_parallel_controller.py")
    cut(text, ("LoadBalanceMethod", "DPBudget", "DataParallelController"), module.__dict__)

    def launch(self: Any, server_args: Any, port_args: Any) -> None:
        self.workers[: state.num_dp_ranks] = [f"socket {rank}" for rank in range(state.num_dp_ranks)]
        self.max_total_num_tokens = 100_000

    controller = module.__dict__["DataParallelController"]
    controller.launch_dp_schedulers = controller.launch_dp_attention_schedulers = launch
    version = next(
        line.split("'")[1]
        for line in source(wheel, "sglang/_version.py").splitlines()
        if line.startswith("__version__ = ")
    )
    return module, version


class _Dispatcher:
    def add_fallback_fn(self, function: Any) -> None:
        """Nothing falls here."""


def signatures(owner: type, names: Iterable[str]) -> dict[str, list[str]]:
    """Names of the parameters of methods."""
    found = {}
    for name in names:
        with suppress(AttributeError):
            found[name] = list(inspect.signature(getattr(owner, name)).parameters)
    return found


def put_in_place(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Have a module found by its name, and its parents."""
    parts = module.__name__.split(".")
    for i in range(1, len(parts)):
        name = ".".join(parts[:i])
        parent = types.ModuleType(name)
        parent.__path__ = []
        monkeypatch.setitem(sys.modules, name, parent)
    monkeypatch.setitem(sys.modules, module.__name__, module)
