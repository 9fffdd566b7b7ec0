"""Is a program distributed right? Run it for real, watched, and compare its workers.

What `course check 3` does, roughly in this order, which is also one to read it in:
modules of `distcheck` and of `utils`, and their functions on the way.

Read the docstring of each module and the functions that are named, and no more; where
none is named, all of the module. These are fewer than 2,500 lines, for an hour: 450 of
the command, 300 of the lab's server, 800 of the worker, and 900 of the judge. The files
as a whole are more than twice as long, so look up each `def NAME` alone: from the first
name of a file to its last are half as many lines again. Two of the docstrings are
tables: that of `recorder` says what is hooked and what each hook reports, and that of
`interventions` what is changed on purpose in what a program computes and sees.

The command has the lab run the program in two scenarios, with two workers each. The
workers of "two" see four GPUs that are pretended, and rank 0 builds graphs in the end.
Those of "other options" have no GPU and other options, and begin with the files that
rank 0 of "two" has left; so they start when the programs of "two" have ended. (Both are
at the end of `scenarios`; arrays are declared in `events`.) With the options of all
scenarios, in `judges.steps.common`, a worker has seven steps in an epoch of 60 small
images, real ones of `utils.checking.images`, or three once step 5 is done. Of the steps
that Keras makes, the first three are computed; later ones are only counted.

    utils.cli                 check
    utils.checking.checks     report_on
    utils.checking.exercises  Exercise.judge, Exercise._static_verdicts,
                              Exercise.scenarios, Exercise.observe, Exercise.job
    scenarios                 Scenario
    lab                       perform, prepare, _owned
    supervise                 owned, Supervisor._watch, Supervisor._end_all

The lab's server hooks Horovod. Its forks become the workers; it sees to their end:

    lab.server                main, Server.serve, Server._still_writes,
                              Server._start, Server._poll
    recorder.horovod          prepare
    recorder.patches          hook_horovod
    lab.messenger
    lab.server                Server._fork
    lab.running               Running.outcome, Running.waits, Running.tend
    supervise                 awake
    lab.outcomes              Watch.ended, Watch.gets_nowhere
    lab.server                Server._end

A worker runs the program, and writes down what its hooks see:

    lab.forked                become_worker, _pretend, _enter_home, _run_recorded
    recorder
    recorder.recorder         Recorder.run, Recorder.replace, Recorder.wait_for_the_end,
                              Recorder.report_replaced
    worker                    run_program
    recorder.writer           Writer.event, Writer.keep
    recorder.horovod          HorovodRecorder.at_work
    recorder.patches          hook_updates, _observed
    recorder.interventions    perturb_initial_weights, narrow, skip_steps
    recorder.horovod          HorovodRecorder.wraps, HorovodRecorder.collective
    recorder.keras            KerasRecorder.hook_training, KerasRecorder.intervene,
                              KerasRecorder.create_variable,
                              KerasRecorder._forward, KerasRecorder.answer,
                              KerasRecorder._report, KerasRecorder._note_trained,
                              KerasRecorder._gradient,
                              KerasRecorder._report_loss,
                              KerasRecorder._observe_update
    recorder.gradients        Gradients.take, Gradients.apply, Gradients._begin_update
    events                    Event, CollectiveStart, Wrapped, Forward, Loss, Update,
                              Graph
    recorder.graphs           Graphs.watch, Graphs.build

When both scenarios have ended, the step's judge raises what it finds as a Problem:

    utils.checking.exercises  Exercise.verdicts
    parts                     finding
    verdict
    judges.registry
    judges.verdicts           Check.verdict
    judges.runs               Problem, read, Rank, Run, _left_alone
    judges.steps.common       whatever_the_options
    judges.compiled           must_compile, _raise_if_eager_only
    judges.compare
    judges.steps.step_3       averages_gradients, _computed, _kind_used, _used,
                              _factors, _is_clipped, _raise_own, _got_the_mean,
                              _raise_if_wrong_otherwise, _updates, _same, _all_same
    utils.checking.checks     stop_at_the_first

Whoever adds a verdict adds a hint for its id to exercises/hints.md, a program to
tests/wrong_programs.toml, and, if teachers will meet it often, a row to the page of the
step in `handbook`.

Of little weight in step 3 are, of `recorder`: devices (for steps 1 and 2), files (2),
metrics and callbacks (2, 5 and 6), and images, by which a batch is known again (5; in 3
for its loss).
recorder.audit, judges.audit and audit are for `course audit`. Whoever changes how
processes are started needs mpi, too; and whoever changes what is reported, evidence:
an event that isn't as declared, or is too large, leaves all parts undecided, as
"tampered", and an array that can't be read those that read it. What is as declared is
taken on trust.
"""
