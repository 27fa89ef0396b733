"""The contract of a policy, as tests to inherit.

A policy of one's own is tested by a class of three lines in a test file::

    from equipoise.testing.policy_contract import PolicyContract


    class TestMyPolicy(PolicyContract):
        policy = "my_policy.py:place"

pytest then runs every test below on it, plain and compiled. What the contract says is in `equipoise.policies.api`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from equipoise.cost.step_cost import StepCost, Term
from equipoise.errors import InputError, PolicyError
from equipoise.policies.registry import Policy, parse
from equipoise.policies.views import copy_ranks
from equipoise.replay import Pool, replay
from equipoise.replay.layout import MAX_ROUND
from equipoise.testing.needs import HealthCheck, Phase, given, pytest, settings, st
from equipoise.testing.rounds import Round, make_round, rounds, tieless_rounds
from equipoise.testing.strategies import costs, pools, traces
from equipoise.traces.trace import Trace
from equipoise.types import BOOKED, Ints, Memory, Ranks, Requests

__all__ = ["Answer", "PolicyContract", "ask"]

FENCE = -(1 << 60)
"""What stands around every array a policy gets; it must stand there afterwards too."""
UNANSWERED = -77
"""What stands in ``out`` before the call: every request must get an answer."""


class Answer(NamedTuple):
    """What one call did."""

    chosen: list[int]
    ranks: Ranks
    """The view as the policy left it."""
    memory: Memory
    spoilt: list[str]
    """Names of what it changed and should not have."""


class PolicyContract:
    """Inherit, set `policy`, and name the class ``Test...``.

    Attributes
    ----------
    policy : str or Policy
        ``my_policy.py:place``, a registered name with parameters (``dualpath,z=1.2``), or a `Policy`.
    symmetric : bool
        Whether relabelling the ranks relabels its choices where no two ranks tie: true of policies that look at loads
        only, false of those that go round, hash or draw.
    examples : int
        Inputs tried by each test.
    """

    policy: ClassVar[Any] = ""
    symmetric: ClassVar[bool] = False
    examples: ClassVar[int] = 60

    def test_chooses_a_rank_with_room_or_stays(self) -> None:
        """Each choice is -1, or a rank on which the request fits with this round's earlier ones counted."""

        def check(case: Round, answer: Answer) -> None:
            _walk(case, answer.chosen)

        self._on_every_round(check)

    def test_books_what_it_chose(self) -> None:
        """The view it leaves is the view it got plus its choices, no more and no less."""

        def check(case: Round, answer: Answer) -> None:
            expected = _walk(case, answer.chosen)
            for name in BOOKED:
                left, wanted = getattr(answer.ranks, name), getattr(expected, name)
                assert np.array_equal(left, wanted), (
                    f"ranks.{name} is {left.tolist()} after the choices {answer.chosen}, should be "
                    f"{wanted.tolist()}: call book() once for every choice"
                )

        self._on_every_round(check)

    def test_touches_nothing_else(self) -> None:
        """Requests, prices, parameters, instances and report ages stay; nothing is written beside an array."""

        def check(case: Round, answer: Answer) -> None:
            assert answer.spoilt == [], f"it wrote into {', '.join(answer.spoilt)}"

        self._on_every_round(check)

    def test_same_memory_same_choice(self) -> None:
        """Memory is all it remembers: with equal memory it chooses and remembers the same."""
        policy = self._policy()

        def check(case: Round, answer: Answer) -> None:
            again = ask(policy, case, case.memory(policy, 3))
            assert again.chosen == answer.chosen, (
                "two calls with equal arguments differ: keep state in memory only"
            )
            assert _equal(again.memory, answer.memory), (
                "two calls with equal arguments leave different memories"
            )

        self._on_every_round(check)

    def test_compiled_equals_plain_python(self) -> None:
        """The compiled policy and its Python source choose, book and remember the same."""
        policy = self._policy()
        if not policy.compiled:
            pytest.skip("it does not compile; replay runs it as plain Python")

        def check(case: Round, answer: Answer) -> None:
            fast = ask(policy, case, case.memory(policy, 3), compiled=True)
            assert fast.chosen == answer.chosen, f"compiled {fast.chosen}, plain Python {answer.chosen}"
            assert _equal(fast.ranks, answer.ranks), "compiled and plain Python book differently"
            assert _equal(fast.memory, answer.memory), "compiled and plain Python remember differently"
            assert fast.spoilt == [], f"compiled, it wrote into {', '.join(fast.spoilt)}"

        self._on_every_round(check)

    def test_full_ranks_keep_everything_queued(self) -> None:
        """Where nothing fits, all stay: no tokens left, or no slots."""
        for capacity, max_batch in ((10, None), (None, 2)):
            case = make_round([[3, 7]] * 3, [1, 5], _COST, kv_capacity_tokens=capacity, max_batch=max_batch)
            answer = ask(self._policy(), case, case.memory(self._policy(), 0))
            assert answer.chosen == [-1, -1], f"no rank has room and it chose {answer.chosen}"

    def test_one_rank_and_one_request(self) -> None:
        """The smallest call there is."""
        case = make_round([[]], [5], _COST)
        assert ask(self._policy(), case, case.memory(self._policy(), 0)).chosen[0] in (0, -1)

    @pytest.mark.parametrize("max_batch", [None, 30])
    def test_largest_round(self, max_batch: int | None) -> None:
        """The most requests a call can bring, with room for all or for some (these in plain Python too)."""
        waiting = [1 + (37 * i) % 500 for i in range(MAX_ROUND)]
        case = make_round([[9] * (i % 3) for i in range(7)], waiting, _COST, max_batch=max_batch)
        policy = self._policy()
        slow = max_batch is not None or not policy.compiled
        for compiled in [False] * slow + [True] * policy.compiled:
            answer = ask(policy, case, case.memory(policy, 0), compiled=compiled)
            _walk(case, answer.chosen)
            assert answer.spoilt == [], f"it wrote into {', '.join(answer.spoilt)}"

    def test_relabelled_ranks_get_relabelled_choices(self) -> None:
        """Ranks have no names: with the ranks in another order the same ranks are chosen (where none tie)."""
        policy = self._policy()
        if not self.symmetric:
            pytest.skip("it does not declare itself symmetric")

        @_settings(self.examples)
        @given(tieless_rounds(), st.randoms(use_true_random=False))
        def check(case: Round, random: Any) -> None:
            order = list(range(case.size[0]))
            random.shuffle(order)
            moved = Round(copy_ranks(case.ranks, order), case.requests, case.prices)
            chosen = ask(policy, case, case.memory(policy, 3)).chosen
            relabelled = ask(policy, moved, moved.memory(policy, 3)).chosen
            assert [r if r < 0 else order[r] for r in relabelled] == chosen

        check()

    def test_serves_every_request_in_replay(self) -> None:
        """In replay all requests finish, equal runs are equal, and the kernel equals its slow twin."""
        policy = self._policy()
        one = Trace.from_columns("one", np.zeros(1), np.array([5]), np.array([2]))
        _outcome(
            one, Pool(ranks=2), policy, _COST, "timed", "reference"
        )  # a quick no for one that never places

        @_settings(max(10, self.examples // 5))
        @given(traces(max_requests=20), pools(), costs(), st.sampled_from(["saturated", "timed"]))
        def check(trace: Trace, pool: Pool, cost: StepCost, mode: Any) -> None:
            first = _outcome(trace, pool, policy, cost, mode, "auto")
            assert first == _outcome(trace, pool, policy, cost, mode, "auto"), "two equal runs differ"
            assert first == _outcome(trace, pool, policy, cost, mode, "reference"), (
                "kernel and slow twin differ"
            )

        check()

    def _policy(self) -> Policy:
        return self.policy if isinstance(self.policy, Policy) else parse(self.policy)

    def _on_every_round(self, check: Callable[[Round, Answer], None]) -> None:
        policy = self._policy()

        @_settings(self.examples)
        @given(rounds())
        def run(case: Round) -> None:
            check(case, ask(policy, case, case.memory(policy, 3)))

        run()


_COST = StepCost("one", (Term("all", per_100k_context=1.0),))


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],  # explaining takes long and says little here
        suppress_health_check=[HealthCheck.too_slow],
    )


def ask(policy: Policy, case: Round, memory: Memory, *, compiled: bool = False) -> Answer:
    """Call a policy on copies of a round, with a fence around every array.

    Parameters
    ----------
    policy : Policy
    case : Round
    memory : Memory
        Copied too.
    compiled : bool
        Call the compiled function instead of its Python source.
    """
    fenced: list[tuple[str, Any]] = []

    def fence(name: str, array: Any) -> Any:
        flat = np.full(array.size + 16, FENCE, dtype=array.dtype)
        flat[8 : 8 + array.size] = array.ravel()
        fenced.append((name, flat))
        return flat[8 : 8 + array.size].reshape(array.shape)

    ranks = Ranks(*(fence(f"the memory beside ranks.{n}", getattr(case.ranks, n)) for n in Ranks._fields))
    requests = Requests(
        *(fence(f"the memory beside requests.{n}", getattr(case.requests, n)) for n in Requests._fields)
    )
    prices = case.prices._replace(
        **{
            n: fence(f"the memory beside prices.{n}", value)
            for n, value in case.prices._asdict().items()
            if isinstance(value, np.ndarray)
        }
    )
    params = fence("the memory beside params", policy.param_array())
    own = Memory(*(fence(f"the memory beside memory.{n}", getattr(memory, n)) for n in Memory._fields))
    out = fence("the memory beside out", np.full(case.size[1], UNANSWERED, dtype=np.int64))
    place = policy.spec.place if compiled else getattr(policy.spec.place, "py_func", policy.spec.place)
    place(ranks, requests, prices, params, own, out)

    spoilt = [name for name, flat in fenced if (flat[:8] != FENCE).any() or (flat[-8:] != FENCE).any()]
    spoilt += [f"requests.{n}" for n in Requests._fields if not _same(requests, case.requests, n)]
    spoilt += [f"prices.{n}" for n in prices._fields if not _same(prices, case.prices, n)]
    spoilt += [f"ranks.{n}" for n in Ranks._fields if n not in BOOKED and not _same(ranks, case.ranks, n)]
    if not np.array_equal(params, policy.param_array()):
        spoilt.append("params")
    return Answer(out.tolist(), ranks, own, spoilt)


def _walk(case: Round, chosen: list[int]) -> Ranks:
    """Book the choices one by one on the truth, refusing those without room; the ranks as they then are."""
    ranks, requests = copy_ranks(case.ranks), case.requests
    lengths: Ints = case.prices.saturation_tokens
    for i, rank in enumerate(chosen):
        assert rank != UNANSWERED, f"request {i} got no answer: write a rank or -1 into out for every request"
        if rank == -1:
            continue
        tokens, room = int(requests.context_tokens[i]), int(requests.reserve_tokens[i])
        assert 0 <= rank < case.size[0], f"request {i} was placed on rank {rank} of {case.size[0]}"
        assert ranks.free_tokens[rank] >= room, (
            f"request {i} (takes {room} tokens) was placed on rank {rank}, which has room for "
            f"{ranks.free_tokens[rank]}; check fits() with its reserve_tokens, and book() every choice"
        )
        ranks.batch[rank] += 1
        ranks.context_tokens[rank] += tokens
        ranks.free_slots[rank] -= 1
        ranks.free_tokens[rank] = ranks.free_tokens[rank] - room if ranks.free_slots[rank] > 0 else -1
        ranks.saturated_tokens[rank] += np.minimum(tokens, lengths)
    return ranks


def _outcome(trace: Trace, pool: Pool, policy: Policy, cost: StepCost, mode: Any, engine: Any) -> Any:
    """What a replay did, or why it could not be done; an error of the policy is raised."""
    concurrency = 2 * pool.total_ranks if mode == "saturated" else None
    try:
        run = replay(
            trace, pool, policy, cost, mode=mode, concurrency=concurrency, warmup_turnovers=0, engine=engine
        )
    except PolicyError:
        raise
    except InputError as error:  # no request fits, or the run is too short to count a step
        return str(error)
    assert run.finished + run.rejected == len(trace)
    return [run.outcome.totals.tolist(), run.outcome.ended.tolist(), run.outcome.rank.tolist()]


def _same(left: Any, right: Any, name: str) -> bool:
    return bool(np.array_equal(getattr(left, name), getattr(right, name)))


def _equal(left: Any, right: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))
