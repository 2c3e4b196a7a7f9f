"""Why an autoscaler decided as it did, and what would have changed it. The policy itself is asked, from its log."""
