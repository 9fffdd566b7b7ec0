"""From a folder of submissions to a gradebook and a page for each learner.

A submission runs in a sandbox, by the same lab and judges as a learner's own check. It
may use `checking`, `lessons` and what is below them.
"""
