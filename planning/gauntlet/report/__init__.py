"""The gauntlet's page: frontiers, verdicts, the start-up cliff and the regrets in one HTML file that loads nothing. Built of `results.py` by
`page.py`."""
