"""How many replicas run: the policies and what carries them out. What is asked before a change lives in `planning`."""
