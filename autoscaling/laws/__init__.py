"""Scaling laws: how many replicas there should be. `law.py` is the contract, `registry.py` knows them all by name."""
