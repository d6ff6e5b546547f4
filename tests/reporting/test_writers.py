import contextlib
import csv
import json
import math
import resource
import tracemalloc
import warnings

import pytest

from corral.reporting.console import SilentConsole
from corral.reporting.reporter import UNTHINNED_ITERATIONS, Reporter, WriterContext
from corral.reporting.tensorboard import TensorBoardWriter
from corral.reporting.writers import CsvWriter, JsonLinesWriter
from corral.storage.metrics_file import iterate_metrics, read_metrics
from corral.storage.run_dir import RunDirectory

STEPS = "time/total_timesteps"


def test_rows_are_on_disk_at_once_and_nan_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer.write({STEPS: 1, "a": math.nan})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{STEPS: 1, "a": None}]
    writer.close()


def test_columns_never_change_and_the_file_is_only_appended_to(tmp_path):
    path = tmp_path / "progress.csv"
    writer = CsvWriter(path, [STEPS, "a"])
    before = path.stat().st_ino
    with path.open() as follower:  # as `tail -f` has it
        assert follower.read() == f"{STEPS},a\n"
        for row in ({STEPS: 1, "a": 2}, {STEPS: 2, "late": 3}, {STEPS: 3, "a": 4, "late": 5}):
            writer.write(row)
        assert follower.read() == "1,2\n2,\n3,4\n"
    writer.close()
    assert path.stat().st_ino == before


def test_a_resumed_run_has_no_duplicate_and_no_torn_rows(tmp_path):
    jsonl, table = tmp_path / "metrics.jsonl", tmp_path / "progress.csv"
    for writer in (JsonLinesWriter(jsonl), CsvWriter(table, [STEPS, "a"])):
        for steps in (10, 20, 30):
            writer.write({STEPS: steps, "a": steps})
        writer.close()
    with jsonl.open("a") as file:
        file.write('{"time/total_ti')  # killed in the middle of a line
    with table.open("a") as file:
        file.write("4")
    inodes = jsonl.stat().st_ino, table.stat().st_ino
    for writer in (JsonLinesWriter(jsonl, resume_from=20), CsvWriter(table, [STEPS, "b"], resume_from=20)):
        writer.write({STEPS: 30, "a": 31, "b": 1})
        writer.close()
    assert [(row[STEPS], row["a"]) for row in read_metrics(jsonl)] == [(10, 10), (20, 20), (30, 31)]
    assert list(csv.DictReader(table.open())) == [
        {STEPS: str(s), "a": str(a)} for s, a in ((10, 10), (20, 20), (30, 31))
    ]
    assert (jsonl.stat().st_ino, table.stat().st_ino) == inodes


@pytest.mark.parametrize("resume_from", [None, 0, 5])
def test_a_run_that_goes_on_from_its_start_has_an_empty_table(tmp_path, resume_from):
    for path in (tmp_path / "empty.csv", tmp_path / "rows.csv", tmp_path / "damaged.csv"):
        path.write_text({"empty": "", "rows": f"{STEPS},a\r\n10,1\r\n", "damaged": "10,1\r\n20"}[path.stem])
        CsvWriter(path, [STEPS, "a"], resume_from).close()
        assert path.read_text() == f"{STEPS},a\n"


@pytest.mark.parametrize("damage", [b"{", b"[1]", b"\xff\xfe", b"7", b'{"other": 1}', b'{"time/total_timesteps": "x"}'])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_damaged_line_is_skipped_with_a_warning(tmp_path, damage, at):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({STEPS: steps}).encode() for steps in (10, 20, 30, 40)]
    path.write_bytes(b"\n".join([*lines[:at], damage, *lines[at:]]) + b"\n")
    with pytest.warns(match=f"line {at + 1} cannot be read"):
        assert [row[STEPS] for row in read_metrics(path)] == [10, 20, 30, 40]
    writer = JsonLinesWriter(path, resume_from=40)
    writer.close()
    assert writer.damaged == (at == 4)  # elsewhere it is not even looked at
    writer = JsonLinesWriter(path, resume_from=20)
    writer.close()
    assert writer.damaged == (at == 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [row[STEPS] for row in read_metrics(path)] == [10, 20]


def test_a_line_that_is_being_written_is_left_out_in_silence(tmp_path, recwarn):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"{STEPS}": 10}}\n{{"{STEPS}": 20, "a": ')
    lines = iterate_metrics(path)
    assert next(lines).row == {STEPS: 10}
    assert list(lines) == [] and not recwarn.list


@pytest.mark.parametrize("until", [0, 100_000, 299_990])
def test_a_long_history_takes_no_memory(tmp_path, until):
    jsonl, table = tmp_path / "metrics.jsonl", tmp_path / "progress.csv"
    with jsonl.open("w") as lines, table.open("w") as rows:
        rows.write(f"{STEPS},filler\n")
        for steps in range(10, 300_010, 10):
            lines.write(f'{{"{STEPS}": {steps}, "filler": {steps}{"0" * 100}}}\n')
            rows.write(f"{steps},{steps}\n")
    tracemalloc.start()
    for writer in (JsonLinesWriter(jsonl, until), CsvWriter(table, [STEPS], until)):
        writer.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20 < jsonl.stat().st_size + (5 << 20)
    assert len(jsonl.read_text().splitlines()) == len(table.read_text().splitlines()) - 1 == until // 10


@contextlib.contextmanager
def no_room_beyond(size):
    """No file can grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tensorboard"])
def test_a_row_that_does_not_fit_is_taken_back_and_later_ones_are_written(tmp_path, kind):
    make = {
        "jsonl": lambda: JsonLinesWriter(tmp_path / "metrics.jsonl"),
        "csv": lambda: CsvWriter(tmp_path / "progress.csv", [STEPS, "a"]),
        "tensorboard": lambda: TensorBoardWriter(tmp_path),
    }
    writer = make[kind]()
    writer.write({STEPS: 1, "a": 1.0})
    (file,) = tmp_path.iterdir()
    with no_room_beyond(file.stat().st_size + 5):  # a part of the next row fits
        for _ in range(3):
            with pytest.raises(OSError, match="File too large"):
                writer.write({STEPS: 2, "a": 2.0})
    writer.write({STEPS: 3, "a": 3.0})
    writer.close()
    read = {
        "jsonl": lambda: [(row[STEPS], row["a"]) for row in read_metrics(file)],
        "csv": lambda: [(int(row[STEPS]), float(row["a"])) for row in csv.DictReader(file.open())],
        "tensorboard": lambda: [(event.step, event.value) for event in scalars(tmp_path, "a")],
    }
    assert read[kind]() == [(1, 1.0), (3, 3.0)]


def scalars(directory, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return events.Scalars(name)


def test_late_in_a_long_run_short_iterations_share_rows(tmp_path):
    """The first ten thousand have one each; then one a second, and all that must not be lost."""
    metrics, progress = tmp_path / "metrics.jsonl", tmp_path / "progress.csv"
    console = SilentConsole()
    reporter = Reporter(WriterContext(RunDirectory(tmp_path), [STEPS], False, None, console.warn), console)
    for i in range(1, UNTHINNED_ITERATIONS + 501):
        reporter.write({STEPS: 10 * i, "time/iterations": i}, i, keep=i == UNTHINNED_ITERATIONS + 77)
    reporter.close()
    written = [row["time/iterations"] for row in read_metrics(metrics)]
    assert written[:UNTHINNED_ITERATIONS] == list(range(1, UNTHINNED_ITERATIONS + 1))
    assert UNTHINNED_ITERATIONS + 77 in written and written[-1] == UNTHINNED_ITERATIONS + 500
    assert len(written) < UNTHINNED_ITERATIONS + 250  # on a machine so slow that it takes minutes, there would be more
    assert [int(row[STEPS]) for row in csv.DictReader(progress.open())] == [10 * i for i in written]


def test_tensorboard_can_read_it(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write({STEPS: 5, "rollout/ep_rew_mean": 2.5, "bad": math.nan})
    writer.close()
    assert [(e.step, e.value) for e in scalars(tmp_path, "rollout/ep_rew_mean")] == [(5, 2.5)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "bad")


def test_tensorboard_forgets_what_a_resumed_run_takes_again(tmp_path):
    for resume_from, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        writer = TensorBoardWriter(tmp_path, resume_from)
        for step in steps:
            writer.write({STEPS: step, "a": float(step + (resume_from or 0))})
        writer.close()
    assert [(event.step, event.value) for event in scalars(tmp_path, "a")] == [(10, 10), (20, 20), (30, 50), (40, 60)]
