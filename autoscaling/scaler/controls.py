"""An operator's word on the number of replicas: kept by the directory, so its form lives where both can reach it."""

from deployments.cell.control import Control, ControlKind, in_force

__all__ = ["Control", "ControlKind", "in_force"]
