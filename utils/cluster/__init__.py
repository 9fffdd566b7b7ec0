"""Several hosts, real or made here: elastic runs, namespaces, Slurm, Spark.

It may use `running`, `lessons` and what is below them; checks are beside it.
"""
