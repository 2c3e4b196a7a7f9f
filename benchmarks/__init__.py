"""Benchmarks: each prints a ratio, both sides in one run, interleaved."""
