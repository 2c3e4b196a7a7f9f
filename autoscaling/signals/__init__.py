"""What a scaling policy may look at: facts of one moment, the same live, in the simulator and in a replayed log."""
