"""Every built-in policy keeps the contract that policy authors get."""

from __future__ import annotations

from equipoise.policies.registry import BUILT_IN
from equipoise.testing.policy_contract import PolicyContract


class Contract(PolicyContract):
    examples = 30


class TestEquipoise(Contract):
    policy = "equipoise"


class TestEquipoiseThatHolds(Contract):
    policy = "equipoise,hold_steps=3"


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


class TestDualPathAuto(Contract):
    policy = "dualpath,z=auto"
    symmetric = True


class TestRoundRobin(Contract):
    policy = "round_robin"


class TestRandom(Contract):
    policy = "random"


class TestPowerOfTwo(Contract):
    policy = "power_of_two"


class TestVllm(Contract):
    policy = "vllm_033"


class TestSglang(Contract):
    policy = "sglang_total_tokens"
    symmetric = True


class TestTrtllm(Contract):
    policy = "trtllm_adp"
    symmetric = True  # in a fresh memory no rank holds a prompt, so batches decide


class TestTrtllmKvAdmission(Contract):
    policy = "trtllm_kv_admission,look_ahead=3"
    symmetric = True


class TestDynamo(Contract):
    policy = "dynamo_kv,block_size=4,weight=0.5"


class TestDynamoResident(Contract):
    policy = "dynamo_kv,block_size=1,weight=0.001953125,track_output_blocks=true"
    symmetric = True


class TestSmgLeastLoad(Contract):
    policy = "smg_least_load"


class TestIqrLex(Contract):
    policy = "iqr_lex"
    symmetric = True


class TestBr0(Contract):
    policy = "br0"
    symmetric = True


class TestBrh(Contract):
    policy = "brh,horizon=6"
    symmetric = True


class TestFastPhi(Contract):
    policy = "fast_phi,points=3"
    symmetric = True


class TestBfIo(Contract):
    policy = "bf_io,horizon=5"
    symmetric = True


def test_every_built_in_policy_is_tested_here():
    tested = {c.policy.split(",")[0] for name, c in globals().items() if name.startswith("Test")}
    assert tested == set(BUILT_IN)
