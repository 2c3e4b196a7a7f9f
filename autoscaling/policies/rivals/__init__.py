"""The scaling policies of others, ported from their sources for comparison: a file a policy, and beside them what
several of them share.

Each module's docstring names the project, the file and the version that it follows, gives the policy as equations, and
says what was left out. Defaults are those that the project ships. What is a gauge of a pod there is derived from the
scheduler's books here: requests in the lanes are its waiting requests, sequences leased are its running ones, booked KV
tokens over those that fit are its KV usage. Bounds are put on by our autoscaler.
"""
