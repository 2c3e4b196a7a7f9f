"""Re-planning at run time: how many replicas each group of each region has at least and at most, from the expected
demand, the prices and what was observed.

`basis.py` has the facts, `program.py` asks HiGHS, `replan.py` makes one re-plan of the last one's state. Nothing here
reads a clock, a file or a network: `cli/replan` and the simulator do.
"""

from planning.replan.basis import Demand, Observed, ReplanBasis, ReplanSettings, SiteKey, SiteState
from planning.replan.replan import replan
from planning.replan.result import HeldBack, Replan, ReplanReason, ReplanState, ScarceSite, SiteBounds

__all__ = [
    "Demand",
    "HeldBack",
    "Observed",
    "Replan",
    "ReplanBasis",
    "ReplanReason",
    "ReplanSettings",
    "ReplanState",
    "ScarceSite",
    "SiteBounds",
    "SiteKey",
    "SiteState",
    "replan",
]
