"""The gauntlet compares scaling policies: each runs through scenarios of which users complained, tuned with the same
budget, and is judged on other runs.

scenario.py, scenarios/     what happens               policy x scenario -> run.py -> a score
oracle.py, known_rate.py    the baselines              tuning.py -> frontier.py -> verdict.py -> planning/report
"""
