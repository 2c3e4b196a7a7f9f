"""Our endpoint against a bare vLLM server and against `ray.serve.llm`: `python -m benchmarks.serving`.

Also here, each a program of its own: `benchmarks.serving.memory` (what the gateway takes) and
`benchmarks.serving.cancel` (how fast work ends when its client leaves).
"""
