"""Why an autoscaler decided as it did, and what would have changed it: asked of the policy itself, from its log."""
