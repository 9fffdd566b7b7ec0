"""The ground: where the course is and a run keeps its files, profiles, sources, texts.

Everything may use it; it uses nothing of the course. No TensorFlow, no Horovod: what is
here must be there in an instant, in every worker.
"""
