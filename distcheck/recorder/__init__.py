"""What records, from inside a worker, what a program does.

It runs in the process of that program and decides nothing: judges compare the workers.
All recorders have `recorder` in common, put hooks where `patches` says, and write with
`writer`. Those of checks are `horovod`, on top of `keras` and `devices`; in a scenario
with `build_graphs`, rank 0 builds in the end the `graphs` that training would compile.
An `audit` leaves functions compiled: `tracing` sees what is computed in them,
`strategies` and `files` see the rest.

Most of it observes; all that is changed on purpose is listed in `interventions`. Only
`patches` uses what is private to TensorFlow, Keras or Horovod.
"""
