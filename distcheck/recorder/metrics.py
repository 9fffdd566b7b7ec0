"""Record what each callback reads and changes, and the metrics of evaluations.

Steps 2, 5 and 6 look at some of it, the others at nothing. Both functions hook a
HorovodRecorder, which is at work.
"""

import functools

from distcheck.recorder import interventions, patches
from distcheck.recorder.callbacks import TrackedLogs, numbers_in


def hook_callbacks(recorder, tf) -> None:
    """Report from now on what each callback does at the end of an epoch, or of a
    validation in `fit`."""
    base = tf.keras.callbacks.Callback
    recorder.note_makers(base)

    def report(callback, before: dict, after: dict, read) -> None:
        made = recorder.made_in_line.get(id(callback))
        facts = {"before": before, "after": after, "read": sorted(read)}
        facts["stops"] = bool(getattr(callback.model, "stop_training", False))
        name = type(callback).__name__
        recorder.event("callback", name=name, made=made, **facts)

    def epoch_end(original):
        def observed(callback_list, epoch, logs=None):
            metrics = patches.logs_of(callback_list, logs)
            tracked = TrackedLogs.of(metrics, base, report)
            for callback in callback_list.callbacks:
                before = tracked.begin(callback)
                with recorder.inside("epoch end"):
                    callback.on_epoch_end(epoch, tracked)
                tracked.done()
                report(callback, before, tracked.plain(), tracked.read)
            recorder.after_epoch()

        return observed

    def test_end(original):
        def observed(callback_list, logs=None):
            metrics = patches.logs_of(callback_list, logs)
            tracked = TrackedLogs.of(metrics, base, report, prefix="val_")
            for callback in callback_list.callbacks:
                before = tracked.begin(callback)
                callback.on_test_end(tracked)
                tracked.done()
                # Keras' own show what they read: to the end of an epoch it comes again.
                own = type(callback).__module__.startswith("tf_keras.")
                if "fit" in recorder.activities and tracked.read and not own:
                    report(callback, before, tracked.plain(), tracked.read)

        return observed

    recorder.before(
        patches.callback_list(), "on_train_batch_begin", recorder.begin_execution
    )
    recorder.replace(patches.callback_list(), "on_epoch_end", epoch_end)
    if recorder.metric_shift:
        recorder.replace(patches.callback_list(), "on_test_end", test_end)
        _shift_evaluations(recorder, tf)


def _shift_evaluations(recorder, tf) -> None:
    """Report from now on what evaluations compute, a little apart on each rank; but
    not where the ranks have met meanwhile, perhaps to average each step."""
    computed: dict = {}  # the metrics of the last evaluation that was computed
    evaluations = 0
    collectives = 0  # before this evaluation

    def begins(*args, **kwargs) -> None:
        nonlocal collectives
        collectives = recorder.collectives

    def shift_metrics(original):
        def observed(model, logs):
            nonlocal computed, evaluations
            metrics = original(model, logs)
            if "evaluate" not in recorder.activities:
                return metrics
            means = [m for m in model.metrics if hasattr(m, "total")]
            if any(m.count.numpy() for m in means):
                computed = metrics
            elif means:  # its steps were only counted
                metrics = {k: computed.get(k, v) for k, v in metrics.items()}
            evaluations += 1
            if recorder.collectives == collectives:
                shift = recorder.rank, evaluations, recorder.metric_shift
                metrics = interventions.shift_metrics(metrics, means, *shift)
            known = numbers_in({f"val_{k}": v for k, v in metrics.items()})
            fit = "fit" in recorder.activities
            own = "epoch end" in recorder.activities
            recorder.event("evaluated", fit=fit, own=own, metrics=known)
            return metrics

        return observed

    evaluate = functools.partial(recorder.within, "evaluate")
    recorder.replace(tf.keras.Model, "evaluate", evaluate)
    recorder.before(tf.keras.Model, "evaluate", begins)
    recorder.replace(*patches.evaluation_metrics(tf), shift_metrics)
