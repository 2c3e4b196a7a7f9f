"""How good a way of scaling was: promises kept, replica-hours, flaps, recovery. Pure; used by the gauntlet, by `tune` and by reports."""
