"""The report of `raylane tune`: one HTML file that stands alone, with the front, the proposal, and what it would have done over the day."""
