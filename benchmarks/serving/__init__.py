"""Our endpoint against a bare vLLM server and against `ray.serve.llm` (`python -m benchmarks.serving`); and what a
relayed event costs a gateway (`benchmarks.serving.gateways`)."""
