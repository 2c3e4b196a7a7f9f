"""`raylane bench`: a load generator for OpenAI-compatible endpoints. Start reading at `command.py`, then `run.py` and
`load.py`."""

from cli.bench.command import bench
