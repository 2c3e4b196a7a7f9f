"""The scenarios, one complaint of users in each file. `registry.py` lists them."""
