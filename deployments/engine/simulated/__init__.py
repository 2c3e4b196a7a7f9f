"""A simulated engine with vLLM's HTTP face: filler words, in the time that `engine_model` says. It imports neither vLLM
nor torch."""
