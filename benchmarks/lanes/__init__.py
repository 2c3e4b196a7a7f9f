"""Lanes against first-in-first-out: the whole endpoint on real traces (`python -m benchmarks.lanes`), and the core
alone at scale (`.core`)."""
