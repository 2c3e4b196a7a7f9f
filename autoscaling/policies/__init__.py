"""Scaling policies: how many replicas there should be. `policy.py` is the contract, `registry.py` knows them all by
name."""
