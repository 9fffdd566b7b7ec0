"""What records, from inside a worker, what a program does.

It runs in the process of that program and decides nothing: judges compare the workers.
Most of it observes. What changes what a program sees is in `interventions`.
"""
