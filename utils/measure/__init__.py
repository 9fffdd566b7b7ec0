"""How fast, how accurate, is it the same? Measurements, models of them, records.

`programs` are what is timed, `recorded` what was measured. It may use everything but
grading, figures and the command line.
"""
