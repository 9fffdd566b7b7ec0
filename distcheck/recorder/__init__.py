"""What records, from inside a worker, what a program does.

It runs in the process of that program and decides nothing: judges compare the workers.
All recorders have `recorder` in common, put hooks where `patches` says, and write with
`writer`. Those of checks (`horovod`, `keras`, `devices`) have functions run eagerly,
and build their `graphs` in the end. An `audit` leaves them compiled: `tracing` sees
what is computed in them, `strategies` and `files` see the rest.

Most of it observes. What a program is shown otherwise than it is, in a check:

- by `interventions`: the weights at the start, the optimizer's state, metrics,
  predictions, GPUs; and that most steps are not computed;
- by `horovod`: the local rank and size, and files that other ranks have written;
- by `patches.run_eagerly`: functions are not compiled;
- by `first_import`: TensorFlow seems not to be imported yet;
- by the lab: environment, working directory, data, and an end that never comes, so that
  no worker leaves before the others are done.

In an audit:

- by `interventions`: XLA is left out, and a processor stands for several devices;
- by `audit`: Python's random numbers begin with the rank.
"""
