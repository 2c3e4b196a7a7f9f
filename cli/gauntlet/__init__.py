"""`raylane gauntlet`: every scaling law through every scenario."""

from cli.gauntlet.command import gauntlet

__all__ = ["gauntlet"]
