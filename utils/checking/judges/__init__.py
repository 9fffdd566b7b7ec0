"""What turns the records of a check's workers into verdicts.

A module for each exercise's judges, and for each of the six steps in `steps`; each
registers its judges while it is imported. `runs` has what they look at, `compare` how
numbers are compared, `verdicts` what becomes of a Problem. All of it may use what
`checking` may, and its `lab` and `evidence`.
"""
