"""How fast the simulator is, and how that grows: `python -m benchmarks.simulator`."""
