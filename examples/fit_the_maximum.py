"""Why the maximum is fitted as it stands: two shortcuts on planted data, against the fit.

Run it: ``python examples/fit_the_maximum.py``. 64 ranks, log-normal contexts, no noise: every error is the method's.
"""

from __future__ import annotations

from equipoise.calibrate import plant
from equipoise.calibrate.bottleneck import fit_bottleneck
from equipoise.calibrate.clean import clean
from equipoise.calibrate.shapes import Form, TermForm
from equipoise.calibrate.shortcuts import feature_maxima, rank_by_rank
from equipoise.cost import StepCost, Term

TRUTH = StepCost(
    "truth", (Term("decode", per_request=20.0, per_100k_context=80.0),), constant=4000.0, unit="us"
)
FORM = Form((TermForm("decode", context=True),))

print(f"{'':24}{'constant':>10}{'a request':>12}{'100k context':>14}")
for load, options in {
    "steady load": {"batch_swing": 0.1, "context_sigma": 1.0},
    "steady load, long tail": {"batch_swing": 0.1, "context_sigma": 1.5},
    "swinging load, long tail": {"batch_swing": 0.5, "context_sigma": 1.5},
}.items():
    samples = clean(plant(TRUTH, steps=1000, noise=0.0, seed=1, **options)).samples
    print(load)
    for method, coefficients in {
        "  planted": (4000.0, 20.0, 80.0),
        "  the fit": fit_bottleneck(samples, FORM).coefficients,
        "  rank by rank": rank_by_rank(samples, FORM),
        "  feature-wise maxima": feature_maxima(samples, FORM),
    }.items():
        constant, request, context = coefficients
        print(f"{method:24}{constant:10.0f}{request:12.1f}{context:14.1f}")
