"""The judges of the six Horovod steps, a module for each."""
