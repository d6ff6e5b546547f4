import multiprocessing
import os
import resource
import time

from corral.reporting.process_meter import ProcessMeter


def burn():
    while True:
        pass


def test_processor_time_and_memory_of_every_process_are_told():
    process = multiprocessing.get_context("spawn").Process(target=burn)
    process.start()
    meter = ProcessMeter(lambda: [process.pid])
    time.sleep(1.5)
    row = meter.sample()
    assert meter.sample() is row  # a moment later there is nothing new
    process.kill()
    process.join()
    assert set(row) == {f"system/{name}_{what}" for name in ("trainer", "worker_0") for what in ("cpu", "mb")}
    assert row["system/worker_0_cpu"] > 3 * row["system/trainer_cpu"]
    assert 1 < row["system/worker_0_mb"] < 200
    assert [use.name for use in meter.totals()] == ["trainer"]  # the other is gone, and that is no error


def test_a_process_that_never_was_is_left_out():
    meter = ProcessMeter(lambda: [2**22 + os.getpid()])
    assert set(meter.sample()) == {"system/trainer_cpu", "system/trainer_mb"}


def test_without_a_free_descriptor_nothing_is_told_and_nothing_raised():
    meter = ProcessMeter(lambda: [os.getppid()])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    time.sleep(1.1)  # it looks about once a second
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        assert meter.sample() == {} and meter.totals() == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "system/trainer_cpu" in meter.sample()
