"""`raylane tune`: settings of the scaling law that keep the promises for less. Start reading at `command.py`."""

from cli.tune.command import tune

__all__ = ["tune"]
