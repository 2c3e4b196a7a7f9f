"""`raylane doctor`: what is missing on this machine, and the command that mends it."""

from cli.doctor.command import doctor

__all__ = ["doctor"]
