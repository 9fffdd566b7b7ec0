"""The recorder of audits: `auditor` is what mpirun starts, and hooks all the others.

Functions stay compiled, so `tracing` puts operations of its own into the graphs that
TensorFlow builds, and reports the numbers of a training from there. `strategies` and
`horovod` report how a program is distributed, `files` what it writes; `callbacks` says
what a callback may do with the metrics that it reads. No check needs any of this.
"""
