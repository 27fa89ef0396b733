"""A study in ten lines of Python: three policies on one workload, on two models.

Run it with ``python examples/library.py``.
"""

import equipoise

trace = equipoise.traces.synth("agentic-coding", requests=20_000, seed=1, steady_state=1024)
pool = equipoise.Pool(ranks=32)
for model in ("glm-5.3", "deepseek-v3"):
    cost = equipoise.cost.derive(equipoise.models.load(model), kind="v1")
    print(f"{model}: one request weighs as much as {cost.request_in_context_tokens:,.0f} context tokens")
    for policy in ("least_batch", "least_tokens", "dualpath,z=1.05"):
        result = equipoise.replay(trace, pool, policy, cost, concurrency=1024)
        print(f"  {policy:16} excess {result.excess:6.1%}  bubble {result.bubble_share:6.1%}")
