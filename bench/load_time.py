"""Seconds to load the compiled kernel and a policy from the cache, in a fresh process."""

from __future__ import annotations

import time

began = time.perf_counter()

from equipoise.policies import get  # noqa: E402  (the import is what is timed)
from equipoise.replay.kernel import run  # noqa: E402

get("dualpath")
print(time.perf_counter() - began, run.__name__)
