"""raylane's scaling policy beside those of others, in the simulator: `python -m benchmarks.policies`.

Start with the table in `scenarios.py`; `run.py` runs a policy through one, `__main__.py` compares."""
