"""The traffic file: a description of traffic in YAML, and the requests drawn from it."""
