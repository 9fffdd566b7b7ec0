"""What reports, from inside a worker, what a learner's program does.

It runs in the process of that program and decides nothing. It may use `training` and
`checking.evidence`; a program that is being graded sees these modules and no judge.
"""
