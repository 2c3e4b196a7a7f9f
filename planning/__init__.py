"""Questions asked before a change: workloads, the simulator, calibration, tuning, placement. Nothing that serves
imports it."""

from planning.compiled import use_compiled

use_compiled()
