"""Live against simulated: how wrong the simulator is on a deployment, and how that is published. Pure."""
