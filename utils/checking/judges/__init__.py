"""What turns the reports of the workers of a check into verdicts.

A module for each exercise's judges, `judge` for what they share. It may use what
`checking` may, and its `lab` and `evidence`.
"""
