"""The model of an engine: vLLM's scheduling and the time of its steps. Pure. The simulator and the simulated replica
drive it."""
