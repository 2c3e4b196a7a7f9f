"""`raylane drill`: what a fault of a region, a zone or a link does to a cluster of several cells, live or simulated."""

from cli.drill.command import drill

__all__ = ["drill"]
