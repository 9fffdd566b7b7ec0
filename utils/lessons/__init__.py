"""The course as text: steps in annotated programs, hints, progress, notebooks.

What is to be done, in which order, and what of it is done. It may use `base` and
`training`; it starts no training, but executes notebooks.
"""
