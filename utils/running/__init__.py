"""Starting a program on N workers, following it to its end, looking into workers.

`launch.run` is `course run`. It may use `base` and `training`; it knows nothing of
lessons, of checks or of grades.
"""
