"""The stopwatch of the programs that train with `fit`."""

from utils.training import stopwatch


def test_validation_does_not_count(monkeypatch):
    moments = iter([10.0, 12.0, 30.0, 35.0])
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(moments))
    clock, first, second = stopwatch.Stopwatch(100), {}, {}
    clock.on_epoch_begin(0)
    clock.on_test_begin()
    clock.on_epoch_end(0, first)
    clock.on_epoch_begin(1)
    clock.on_epoch_end(1, second)
    assert first == {"images_per_second": 50, "seconds": 2}
    assert second == {"images_per_second": 20, "seconds": 7}
