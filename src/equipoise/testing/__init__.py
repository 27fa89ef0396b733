"""What authors of policies and readers test with: Hypothesis strategies and contract suites.

`equipoise.testing.strategies` makes small traces, pools, costs and policies; `equipoise.testing.policy_contract`
holds the contract of a policy as a class to inherit from. Both need hypothesis and pytest, which the package itself
does not.
"""
