"""The ground: where the course is, files, processes, tables, machine, programs as text.

Everything may use it; it uses nothing of the course. No TensorFlow, no Horovod: what is
here must be there in an instant, in every worker.
"""
