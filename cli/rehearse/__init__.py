"""`raylane rehearse`: the same traffic live and simulated, and the error between them. Start reading at `command.py`."""

from cli.rehearse.command import rehearse

__all__ = ["rehearse"]
