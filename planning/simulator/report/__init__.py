"""The report of a simulated run: one HTML file that stands alone, and tells a platform engineer on call what happened, when and why."""
