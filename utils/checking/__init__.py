"""Is it right? The learner's program, this machine, and the clinic's broken programs.

A lab runs a program in several worlds, `observers` in its workers report what it does,
`judges` compare the reports. It may use `running`, `lessons` and what is below them.
"""
