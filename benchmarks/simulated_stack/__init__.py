"""The whole real stack over simulated engines: what the gateway takes for forty GPUs' traffic, and whether the
simulator foretells its times."""
