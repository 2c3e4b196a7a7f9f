"""What runs: the pure scheduling core, the gateway, the engine replicas, and their telemetry."""
