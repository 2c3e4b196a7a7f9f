"""One engine replica: vLLM in process, guarded, watched and drained, as a Ray Serve deployment.

This package's own modules are the rooms; nothing is imported here, so that vLLM's child processes can load `fate_share`
without Ray or Serve.
"""
