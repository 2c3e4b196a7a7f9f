"""What bodies that mean harm cost the gateway, and the streams of others. `python -m benchmarks.hostile`."""
