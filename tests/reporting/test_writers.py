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


def test_json_rows_are_written_at_once_and_nan_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer.write({STEPS: 1, "a": math.nan})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{STEPS: 1, "a": None}]
    writer.close()


def test_csv_columns_never_change_and_the_file_is_only_appended_to(tmp_path):
    path = tmp_path / "progress.csv"
    writer = CsvWriter(path, [STEPS, "a"])
    inode = path.stat().st_ino
    with path.open() as follower:  # keeps the file open, as `tail -f` does
        assert follower.read() == f"{STEPS},a\n"
        for row in ({STEPS: 1, "a": 2}, {STEPS: 2, "late": 3}, {STEPS: 3, "a": 4, "late": 5}):
            writer.write(row)
        assert follower.read() == "1,2\n2,\n3,4\n"
    writer.close()
    assert path.stat().st_ino == inode


def test_files_of_a_resumed_run_have_no_duplicate_and_no_incomplete_rows(tmp_path):
    jsonl, csv_file = tmp_path / "metrics.jsonl", tmp_path / "progress.csv"
    for writer in (JsonLinesWriter(jsonl), CsvWriter(csv_file, [STEPS, "a"])):
        for steps in (10, 20, 30):
            writer.write({STEPS: steps, "a": steps})
        writer.close()
    with jsonl.open("a") as file:
        file.write('{"time/total_ti')  # killed in the middle of a line
    with csv_file.open("a") as file:
        file.write("4")
    inodes = jsonl.stat().st_ino, csv_file.stat().st_ino
    for writer in (JsonLinesWriter(jsonl, resume_from=20), CsvWriter(csv_file, [STEPS, "b"], resume_from=20)):
        writer.write({STEPS: 30, "a": 31, "b": 1})
        writer.close()
    assert [(row[STEPS], row["a"]) for row in read_metrics(jsonl)] == [(10, 10), (20, 20), (30, 31)]
    assert list(csv.DictReader(csv_file.open())) == [
        {STEPS: str(steps), "a": str(a)} for steps, a in ((10, 10), (20, 20), (30, 31))
    ]
    assert (jsonl.stat().st_ino, csv_file.stat().st_ino) == inodes


@pytest.mark.parametrize("resume_from", [None, 0, 5])
def test_the_csv_file_of_a_run_resumed_before_its_first_row_has_only_the_header(tmp_path, resume_from):
    for path in (tmp_path / "empty.csv", tmp_path / "rows.csv", tmp_path / "damaged.csv"):
        path.write_text({"empty": "", "rows": f"{STEPS},a\r\n10,1\r\n", "damaged": "10,1\r\n20"}[path.stem])
        CsvWriter(path, [STEPS, "a"], resume_from).close()
        assert path.read_text() == f"{STEPS},a\n"


@pytest.mark.parametrize("damage", [b"{", b"[1]", b"\xff\xfe", b"7", b'{"other": 1}', b'{"time/total_timesteps": "x"}'])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_damaged_line_is_skipped_with_a_warning(tmp_path, damage, index):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({STEPS: steps}).encode() for steps in (10, 20, 30, 40)]
    path.write_bytes(b"\n".join([*lines[:index], damage, *lines[index:]]) + b"\n")
    with pytest.warns(match=f"line {index + 1} cannot be read"):
        assert [row[STEPS] for row in read_metrics(path)] == [10, 20, 30, 40]
    writer = JsonLinesWriter(path, resume_from=40)
    writer.close()
    assert writer.damaged == (index == 4)  # lines up to the resumed step are not parsed
    writer = JsonLinesWriter(path, resume_from=20)
    writer.close()
    assert writer.damaged == (index == 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [row[STEPS] for row in read_metrics(path)] == [10, 20]


def test_an_incomplete_last_line_is_left_out_without_a_warning(tmp_path, recwarn):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"{STEPS}": 10}}\n{{"{STEPS}": 20, "a": ')
    lines = iterate_metrics(path)
    assert next(lines).row == {STEPS: 10}
    assert list(lines) == [] and not recwarn.list


@pytest.mark.parametrize("resume_from", [0, 100_000, 299_990])
def test_resuming_a_run_with_large_files_needs_little_memory(tmp_path, resume_from):
    jsonl, csv_file = tmp_path / "metrics.jsonl", tmp_path / "progress.csv"
    with jsonl.open("w") as lines, csv_file.open("w") as rows:
        rows.write(f"{STEPS},filler\n")
        for steps in range(10, 300_010, 10):
            lines.write(f'{{"{STEPS}": {steps}, "filler": {steps}{"0" * 100}}}\n')
            rows.write(f"{steps},{steps}\n")
    tracemalloc.start()
    for writer in (JsonLinesWriter(jsonl, resume_from), CsvWriter(csv_file, [STEPS], resume_from)):
        writer.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20 < jsonl.stat().st_size + (5 << 20)
    assert len(jsonl.read_text().splitlines()) == len(csv_file.read_text().splitlines()) - 1 == resume_from // 10


@contextlib.contextmanager
def limit_file_size(size):
    """Let no file grow beyond ``size`` bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tensorboard"])
def test_a_row_that_does_not_fit_on_the_disk_is_removed_and_later_rows_are_written(tmp_path, kind):
    make = {
        "jsonl": lambda: JsonLinesWriter(tmp_path / "metrics.jsonl"),
        "csv": lambda: CsvWriter(tmp_path / "progress.csv", [STEPS, "a"]),
        "tensorboard": lambda: TensorBoardWriter(tmp_path),
    }
    writer = make[kind]()
    writer.write({STEPS: 1, "a": 1.0})
    (file,) = tmp_path.iterdir()
    with limit_file_size(file.stat().st_size + 5):  # only a part of the next row fits
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
    """Return the events of a scalar, read by TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return events.Scalars(name)


def test_after_many_iterations_at_most_one_row_per_second_is_written(tmp_path):
    """The first ten thousand iterations have a row each. Later, rows with ``keep`` and the last one are written too."""
    metrics, progress = tmp_path / "metrics.jsonl", tmp_path / "progress.csv"
    console = SilentConsole()
    reporter = Reporter(WriterContext(RunDirectory(tmp_path), [STEPS], False, None, console.warn), console)
    for i in range(1, UNTHINNED_ITERATIONS + 501):
        reporter.write({STEPS: 10 * i, "time/iterations": i}, i, keep=i == UNTHINNED_ITERATIONS + 77)
    reporter.close()
    written = [row["time/iterations"] for row in read_metrics(metrics)]
    assert written[:UNTHINNED_ITERATIONS] == list(range(1, UNTHINNED_ITERATIONS + 1))
    assert UNTHINNED_ITERATIONS + 77 in written and written[-1] == UNTHINNED_ITERATIONS + 500
    assert len(written) < UNTHINNED_ITERATIONS + 250  # there would be more if this took minutes
    assert [int(row[STEPS]) for row in csv.DictReader(progress.open())] == [10 * i for i in written]


def test_tensorboard_reads_the_event_files_and_nan_is_left_out(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write({STEPS: 5, "rollout/ep_rew_mean": 2.5, "bad": math.nan})
    writer.close()
    assert [(event.step, event.value) for event in scalars(tmp_path, "rollout/ep_rew_mean")] == [(5, 2.5)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "bad")


def test_tensorboard_drops_steps_that_a_resumed_run_repeats(tmp_path):
    for resume_from, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        writer = TensorBoardWriter(tmp_path, resume_from)
        for step in steps:
            writer.write({STEPS: step, "a": float(step + (resume_from or 0))})
        writer.close()
    assert [(event.step, event.value) for event in scalars(tmp_path, "a")] == [(10, 10), (20, 20), (30, 50), (40, 60)]
