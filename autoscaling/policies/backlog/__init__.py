"""raylane's own policy: replicas by the work that waits and arrives, in seconds of what the replicas can do."""
