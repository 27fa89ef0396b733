"""The kernel and its slow twin, written apart from the same rules, agree to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from fleet_cases import quick
from fleet_strategies import fleets
from hypothesis import given

from equipoise.fleet.kernel.layout import BY_INSTANCE, PARTS
from equipoise.fleet.kernel.routers import new_pictures
from equipoise.fleet.kernel.run import fleet_run
from equipoise.fleet.kernel.state import new_state
from equipoise.policies.calling import learn_nothing
from equipoise.policies.views import waiting_requests
from equipoise.replay.layout import ENDED, MAX_ROUND


def run_kernel(
    work, layout, settings, life, ranked, extras, draws, changes, prices, prefill, place, finished, params, ints,
    floats, out, more,
):  # fmt: skip
    """The compiled kernel, with the twin's arguments."""
    saturations, n = len(prices.saturation_tokens), len(work.context_tokens)
    state = new_state(
        layout, life, ranked, draws, saturations=saturations, requests=n, prefill_terms=len(prefill.token),
        parts=len(PARTS),
    )  # fmt: skip
    seen = new_pictures(layout, settings, saturations, n, by_instance=life.split == BY_INSTANCE)
    fleet_run()(
        work, layout, settings, life, ranked, extras, draws, changes, prices, prefill, place, finished, params, ints,
        floats, state, seen, waiting_requests(MAX_ROUND), out, more,
    )  # fmt: skip


def differences(case):
    """Names of the arrays in which the two differ."""
    slow = case.run()
    tells = case.settings.tells_finished
    fast = replace(case, finished=case.finished if tells else learn_nothing).run(run_kernel)
    stopped = [ENDED.ERROR, ENDED.ERROR_REQUEST, ENDED.ERROR_RANK]
    if slow[0].ended[ENDED.ERROR]:  # such a run is refused: how far a step had come by then does not matter
        same = (slow[0].ended[stopped] == fast[0].ended[stopped]).all()
        return [] if same else [("ended", stopped, slow[0].ended[stopped], fast[0].ended[stopped])]
    found = []
    for one, other in zip(slow, fast, strict=True):
        for name, a in one._asdict().items():
            b = getattr(other, name)
            if a.shape != b.shape or a.tobytes() != b.tobytes():
                where = np.flatnonzero((a != b).ravel() & ~(np.isnan(a) & np.isnan(b)).ravel())[:5]
                found.append((name, where.tolist(), a.ravel()[where].tolist(), b.ravel()[where].tolist()))
    return found


@given(fleets())
@quick(180)
def test_kernel_equals_twin(case):
    if case is not None:
        assert differences(case) == []
