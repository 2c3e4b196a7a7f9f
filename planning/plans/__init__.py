"""From a worksheet to a plan: which groups, how many replicas by region and hour, and what they cost.

`traffic.py` says what arrives, `offers.py` what could serve it, `prices.py` what that costs, `question.py` puts the
placement problem; `planning/capacity` solves it; `check.py` simulates the answer, `answer.py` states it.
"""
