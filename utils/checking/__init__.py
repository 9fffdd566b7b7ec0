"""Is it right? The learner's program, this machine, and the clinic's broken programs.

distcheck's lab runs a program in several scenarios, and recorders in its workers report
what it does. Here are the `recorders` of single exercises, and the `judges` that
compare the reports. It may use `running`, `lessons` and what is below them.
"""
