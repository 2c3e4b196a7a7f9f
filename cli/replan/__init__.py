"""`raylane replan`: re-plans the cells of a cluster while they run."""

from cli.replan.command import replan

__all__ = ["replan"]
