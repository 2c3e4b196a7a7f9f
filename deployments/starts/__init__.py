"""How long replicas take to start, and in which phases: measured by each replica, collected by the directory."""
