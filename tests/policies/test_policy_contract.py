"""Every built-in policy keeps the contract that policy authors get."""

from __future__ import annotations

from equipoise.policies.registry import BUILT_IN
from equipoise.testing.policy_contract import PolicyContract


class Contract(PolicyContract):
    examples = 30


class TestLeastBatch(Contract):
    policy = "least_batch"
    symmetric = True


class TestLeastTokens(Contract):
    policy = "least_tokens"
    symmetric = True


class TestLengthSplit(Contract):
    policy = "length_split,window=5,percentile=50"
    symmetric = True


class TestLengthSplitSwapped(Contract):
    policy = "length_split,window=3,percentile=80,swapped=true"
    symmetric = True


class TestDualPath(Contract):
    policy = "dualpath"
    symmetric = True


class TestDualPathCurrent(Contract):
    policy = "dualpath,z=1.2,average=current"
    symmetric = True


class TestRoundRobin(Contract):
    policy = "round_robin"


class TestRandom(Contract):
    policy = "random"


class TestPowerOfTwo(Contract):
    policy = "power_of_two"


def test_every_built_in_policy_is_tested_here():
    tested = {c.policy.split(",")[0] for name, c in globals().items() if name.startswith("Test")}
    assert tested == set(BUILT_IN)
