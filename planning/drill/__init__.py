"""Drills of a cluster of several cells: what befalls it, the traffic meanwhile, and what its clients saw."""
