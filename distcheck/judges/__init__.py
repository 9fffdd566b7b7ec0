"""What turns the reports of workers into verdicts: pure functions of what was seen."""
