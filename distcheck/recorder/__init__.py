"""What records, from inside a worker, what a program does.

It runs in the process of that program and decides nothing: judges compare the workers.
All recorders have `recorder` in common, and write with `writer`. That of the six steps
is `horovod`, on top of `keras` and `devices`: `metrics` hooks callbacks and
evaluations, `gradients` keeps gradients, and `images` recognizes what a model is
trained on. In a scenario with `build_graphs`, rank 0 builds in the end the `graphs`
that training would compile. Other exercises have recorders of their own, in
`utils.checking`, and audits have one, `audit`.

Where a check of a Horovod program has hooks, what they report (events and arrays are
declared in `distcheck.events`), and which steps' judges read some of it:

    the first TensorFlow      keras 3 (`first_import`, by `lab.forked`) 1-6
    init, collectives, rank   collective_start, collective_end, asked;
                              (tensors are noted: given, reduced)       1-6
    visible devices           devices, pinned                           1, 2
    fit, evaluate, callbacks  fit, fitted, callback, evaluated, output  1, 2, 5, 6
    making a variable         (it is noted, for `initial`)              4
    Model.train_step, and
    Model.test_step           forward, of steps that are only counted   1-6
    Model.__call__            forward; initial, start; resumed, state   1-6
    GradientTape.gradient     loss; local                               3
    get_scaled_loss           (it is noted, for `local`)                3
    wrapping an optimizer     wrapped                                   3
    apply_gradients (*)       update; applied, updated; last, mean,
                              total                                     3, 4, 6
    the end of the program    files_written; end                        2, 4
    after it, by `Graphs.build`: each function of Keras or of the program that
    tf.function had made      graphs, graph                             3-6
    and last of all           ended                                     1-6

(*) that of `patches.optimizer`; of legacy optimizers `_distributed_apply`

A hook that a program has replaced is told in the end, as `tampered`, and so are
`json.dumps` and `os.write`, by which reports are written. Three aren't looked at:
`Callback.__new__`, which notes where a callback is made, the creator of variables, and
what watches imports.

Most of it observes. What is changed on purpose, in what a program computes and in what
it sees, is listed in the docstring of `interventions`. Only
`patches` uses what is private to TensorFlow, Keras or Horovod; hooks of what is public
are put where their events are made.
"""
