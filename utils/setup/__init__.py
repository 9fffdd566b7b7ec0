"""Scripts for a machine that has a Python and nothing else; nobody imports them.

They use the standard library and plain syntax, and nothing of the course:
`python3 utils/setup/install.py`.
"""
