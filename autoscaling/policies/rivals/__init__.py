"""The scaling policies of others, ported from their sources for comparison: one file for each policy, and shared parts
beside them.

Each module's docstring names the project, the file and the version that it follows, gives the policy as equations, and
says what was left out. Defaults are those of the project. Gauges of a pod are derived from the scheduler's snapshot:
requests in the lanes are its waiting requests, leased sequences its running ones, and booked KV tokens over those that
fit its KV usage. Our autoscaler applies the bounds.
"""
