"""Capacity planning: how many replicas of which group in which region and hour, at the lowest price.

`problem.py` states the question, `program.py` writes it as a mixed-integer program, `placement.py` has HiGHS answer it,
and `clash.py` explains why there is no answer, or what a limit costs. Nothing here reads prices or runs the simulator.
"""
