import csv
import json
import math

from corral.monitor.tensorboard import TensorBoardWriter
from corral.monitor.writers import CsvWriter, JsonLinesWriter, read_metrics

STEPS = "time/total_timesteps"


def test_rows_are_on_disk_at_once_and_nan_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer.write({STEPS: 1, "a": math.nan})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{STEPS: 1, "a": None}]
    writer.close()


def test_late_columns_are_added_to_the_csv(tmp_path):
    path = tmp_path / "progress.csv"
    writer = CsvWriter(path)
    writer.write({STEPS: 1, "a": 2})
    writer.write({STEPS: 2, "b": 3})
    writer.write({STEPS: 3, "a": 4, "b": 5})
    writer.close()
    assert list(csv.reader(path.open())) == [[STEPS, "a", "b"], ["1", "2", ""], ["2", "", "3"], ["3", "4", "5"]]


def test_a_resumed_run_has_no_duplicate_and_no_torn_rows(tmp_path):
    jsonl, table = tmp_path / "metrics.jsonl", tmp_path / "progress.csv"
    for writer in (JsonLinesWriter(jsonl), CsvWriter(table)):
        for steps in (10, 20, 30):
            writer.write({STEPS: steps, "a": steps})
        writer.close()
    with jsonl.open("a") as file:
        file.write('{"time/total_ti')  # killed in the middle of a line
    with table.open("a") as file:
        file.write("4")
    lines = JsonLinesWriter(jsonl, resume_from=20)
    for writer in (lines, CsvWriter(table, lines.kept)):
        writer.write({STEPS: 30, "a": 31})
        writer.close()
    assert [(row[STEPS], row["a"]) for row in read_metrics(jsonl)] == [(10, 10), (20, 20), (30, 31)]
    assert [row["a"] for row in csv.DictReader(table.open())] == ["10", "20", "31"]


def test_tensorboard_can_read_it(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoardWriter(tmp_path)
    writer.write({STEPS: 5, "rollout/ep_rew_mean": 2.5, "bad": math.nan})
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("rollout/ep_rew_mean")] == [(5, 2.5)]
    assert "bad" not in events.Tags()["scalars"]
