"""Placement rules: one file a policy, one `place` interface for simulator, router and plug-ins."""

from __future__ import annotations

from equipoise.policies.api import Parameter, PolicySpec
from equipoise.policies.registry import Policy, get, names, parse, spec

__all__ = ["Parameter", "Policy", "PolicySpec", "get", "names", "parse", "spec"]
