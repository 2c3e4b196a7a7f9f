"""The scenarios: one complaint of users a file. `registry.py` lists them."""
