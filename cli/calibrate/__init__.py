"""`raylane calibrate`: measures what an engine's steps cost. Start reading at `command.py`."""

from cli.calibrate.command import calibrate

__all__ = ["calibrate"]
