"""Questions asked before a change: workloads, the simulator, calibration, tuning, the gauntlet. Nothing that serves
imports it."""
