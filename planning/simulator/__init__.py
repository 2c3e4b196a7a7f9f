"""The rehearsal: a simulator that runs the production scheduler (`deployments/scheduling`, imported, not copied) on
simulated engines."""
