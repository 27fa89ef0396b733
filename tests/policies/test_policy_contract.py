"""Every built-in policy keeps the contract that policy authors get."""

from __future__ import annotations

from equipoise.policies.registry import BUILT_IN
from equipoise.testing.policy_contract import PolicyContract


class TestLeastBatch(PolicyContract):
    policy = "least_batch"
    symmetric = True


class TestLeastTokens(PolicyContract):
    policy = "least_tokens"
    symmetric = True


class TestLengthSplit(PolicyContract):
    policy = "length_split,window=5,percentile=50"
    symmetric = True


class TestLengthSplitSwapped(PolicyContract):
    policy = "length_split,window=3,percentile=80,swapped=true"
    symmetric = True


class TestDualPath(PolicyContract):
    policy = "dualpath"
    symmetric = True


class TestDualPathCurrent(PolicyContract):
    policy = "dualpath,z=1.2,average=current"
    symmetric = True


class TestRoundRobin(PolicyContract):
    policy = "round_robin"


class TestRandom(PolicyContract):
    policy = "random"


class TestPowerOfTwo(PolicyContract):
    policy = "power_of_two"


def test_every_built_in_policy_is_tested_here():
    tested = {
        c.policy.split(",")[0] for c in globals().values() if isinstance(c, type) and c is not PolicyContract
    }
    assert tested == set(BUILT_IN)
