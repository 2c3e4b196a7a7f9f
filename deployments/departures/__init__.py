"""Which replicas and gateways ended, when and why, what was lost with each, and what came in its place. The directory keeps this, in a file that
outlives every process of the cell."""
