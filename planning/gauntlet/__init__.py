"""The gauntlet: every scaling policy through every scenario that users complained of, tuned alike, judged on what it
was not tuned on.

scenario.py, scenarios/     what happens to whom          policy x scenario -> run.py -> a score
oracle.py, known_rate.py    the limits to compare with    tuning.py -> frontier.py -> verdict.py, regret.py, cliff.py ->
                            report/
"""
