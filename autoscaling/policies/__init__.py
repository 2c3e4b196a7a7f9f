"""Scaling policies: how many replicas there should be. `policy.py` is the contract, `registry.py` lists them by
name."""
