"""How good what `raylane tune` proposes is on a day that it has not seen: `python -m benchmarks.tune`."""
