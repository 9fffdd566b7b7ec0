"""What records, from inside a worker, what a program does.

It runs in the process of that program and decides nothing: judges compare the workers.
All recorders have `recorder` in common, put hooks where `patches` says, and write with
`writer`. Those of checks are `horovod`, on top of `keras` and `devices`; in a scenario
with `build_graphs`, rank 0 builds in the end the `graphs` that training would compile.
An `audit` leaves functions compiled: `tracing` sees what is computed in them,
`strategies` and `files` see the rest.

Most of it observes. What a check of a Horovod program changes, and where; functions
without a module are of `interventions`:

    functions run eagerly                 patches.run_eagerly, HorovodRecorder.at_work
    start weights, on all but rank 0      perturb_initial_weights, KerasRecorder
                                          .create_variable
    the optimizer's state, on all but     perturb_state, KerasRecorder._after_update
    rank 0, after the first update
    convolutions have two channels        narrow, KerasRecorder.intervene
    most steps are only counted           skip_steps, KerasRecorder.intervene
    validation metrics                    shifted, KerasRecorder._shift_metrics
    rank 0's predictions, if asked for    always_wrong_or_right, KerasRecorder._forward
    callbacks are called by a loop of     KerasRecorder.hook_callbacks
    its own, and get `TrackedLogs`
    GPUs                                  pretend_gpus, DeviceRecorder._initialize
    local rank and size                   HorovodRecorder.asked, lab.forked._pretend
    files of other ranks are there        HorovodRecorder._share_files
    after a collective
    TensorFlow seems not imported yet     first_import.watched
    the program doesn't end, so that no   Recorder.wait_for_the_end
    worker leaves before the others
    once graphs are built, a collective   HorovodRecorder.collective, .remembered
    returns what it is given, and
    Horovod's answers are remembered
    a program with `devices_only` stops   DeviceRecorder._takes_hold
    environment, working directory and    lab.environment, lab.forked, the job's source
    what is in it, and images

A recorder of a single exercise may change more, see its module.

In an audit:

- by `interventions`: XLA is left out, and a processor stands for several devices;
- by `audit`: Python's random numbers begin with the rank.
"""
