"""The programs that are timed and compared; each starts by itself, too.

They may use `training` alone, as the programs of learners do.
"""
