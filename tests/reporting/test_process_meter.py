import multiprocessing
import os
import resource
import time

from corral.reporting.process_meter import ProcessMeter


def spin():
    while True:
        pass


def test_cpu_time_and_memory_of_every_process_are_measured():
    process = multiprocessing.get_context("spawn").Process(target=spin)
    process.start()
    meter = ProcessMeter(lambda: [process.pid])
    time.sleep(1.5)
    row = meter.sample()
    assert meter.sample() is row  # a sample counts as current for a second
    process.kill()
    process.join()
    assert set(row) == {f"system/{name}_{quantity}" for name in ("trainer", "worker_0") for quantity in ("cpu", "mb")}
    assert row["system/worker_0_cpu"] > 3 * row["system/trainer_cpu"]
    assert 1 < row["system/worker_0_mb"] < 200
    assert [use.name for use in meter.totals()] == ["trainer"]  # the worker has ended, which is no error


def test_a_worker_without_a_process_is_left_out():
    meter = ProcessMeter(lambda: [2**22 + os.getpid()])
    assert set(meter.sample()) == {"system/trainer_cpu", "system/trainer_mb"}


def test_without_a_free_file_descriptor_the_sample_is_empty_and_nothing_is_raised():
    meter = ProcessMeter(lambda: [os.getppid()])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    time.sleep(1.1)  # the first sample counts as current for a second
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert meter.sample() == {} and meter.totals() == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "system/trainer_cpu" in meter.sample()
