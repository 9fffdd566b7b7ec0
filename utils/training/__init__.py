"""What programs import: data, networks, devices, checkpoints, the capstone's doodles.

What a training program would need anywhere, and nothing of this course's launcher or
checks. It may use `base`.
"""
