"""``corral compare``: two runs compared from their files alone, as a table, a report and an image."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import corral
from corral.bench.compare import compare_records, compare_runs
from corral.bench.timed import write_benchmark_metrics
from corral.cli.main import main
from corral.storage.run_record import read_record

BLUE, ORANGE = (0x3B, 0x6F, 0xB6), (0xE0, 0x7B, 0x28)


def row(steps, seconds, episodes=None, reward=None, loss=None, **more_metrics):
    """Return a row of metrics after some steps and seconds."""
    metrics = {
        "time/total_timesteps": steps,
        "time/time_elapsed": seconds,
        "time/fps": steps / seconds,
        "rollout/episodes": episodes,
        "rollout/ep_rew_mean": reward,
        "train/loss": loss,
    }
    return {name: value for name, value in metrics.items() if value is not None} | more_metrics


def write_run(name, rows, summary=None, **config):
    """Write the files of a run with these rows of metrics; return its directory."""
    path = Path(name)
    path.mkdir(parents=True)
    config = {"env": "CartPole-v1", "seed": 1, "backend": "serial", "output_dir": name} | config
    (path / "config.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in config.items()))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def cells(comparison):
    """Return the values of both runs by the name of their row in the table."""
    return {line.name: (line.a, line.b) for line in comparison.rows}


def shown_runs(picture):
    """Return for each run whether its colour occurs in the image."""
    with Image.open(picture) as image:
        assert image.format == "PNG" and image.width >= 900 and image.height >= 600
        pixels = np.asarray(image.convert("RGB"))
    return [bool((pixels == colour).all(axis=-1).any()) for colour in (BLUE, ORANGE)]


def compare(a, b, names=("A", "B")):
    """Return the comparison without drawing its image, which takes half a second."""
    return compare_records(read_record(a), read_record(b), Path("out"), names)


@pytest.fixture
def pair():
    """Return two runs: B has twice the steps per second of A and reaches a reward of 30 in a third of the time."""
    slow = [row(1000 * i, 2.0 * i, 100 * i, 10.0 * i, 1 / i) for i in range(1, 4)]
    fast = [row(1000 * i, 1.0 * i, 100 * i, 15.0 * i, 1 / i) for i in range(1, 7)]
    summary = {"steps": 3000, "num_workers": 1, "exit_reason": "duration"}
    return write_run("runs/a", slow, summary), write_run("runs/b", fast, backend="process", num_workers=2)


def test_the_table_has_the_values_of_the_files(pair):
    comparison = compare(*pair, names=("sequential", "parallel"))
    table = cells(comparison)
    assert table["steps"] == ("3,000", "6,000") and table["seconds of training"] == ("6.00", "6.00")
    assert table["steps per second"] == ("500", "1,000") and table["speed-up"] == ("1.00", "2.00")
    assert comparison.speed_up == pytest.approx(2.0)
    assert table["episodes"] == ("300", "600")
    assert table["mean reward, last 100 episodes"] == ("30.00", "90.00")
    assert table["backend"] == ("serial", "process") and table["workers"] == ("none", "2")
    assert table["seconds until reward 30.00"] == ("6.00", "2.00")
    assert table["ended by"] == ("duration", "not finished")
    assert "best evaluation reward" not in table
    assert "parallel was faster than sequential, at 2.00 times its speed" in comparison.conclusion
    assert "30.00, took parallel 2.00 s and sequential 6.00 s" in comparison.conclusion


def test_the_report_has_table_differences_and_conclusion(pair):
    comparison = compare_runs(*pair, output="out")
    report = Path("out/comparison_report.txt").read_text(encoding="utf-8")
    assert comparison.report == Path("out/comparison_report.txt")
    assert all(line.name in report and line.a in report and line.b in report for line in comparison.rows)
    assert [tuple(line) for line in comparison.differences] == [
        ("backend", "serial", "process"),
        ("num_workers", "not set", "2"),
    ]
    assert "num_workers  not set  2" in report and comparison.conclusion in report and "CartPole-v1" in report


def test_the_image_shows_both_runs(pair):
    comparison = compare_runs(*pair, output="out")
    assert comparison.picture == Path("out/comparison.png")
    assert shown_runs(comparison.picture) == [True, True]


def test_the_conclusion_says_which_run_is_faster_or_that_both_are_about_as_fast():
    a = write_run("a", [row(1000, 1.0)])
    b = write_run("b", [row(1000, 1.01)])
    assert "about as fast" in compare(a, b).conclusion
    c = write_run("c", [row(1000, 2.0)])
    assert "B was slower than A, at 0.50 times its speed" in compare(a, c).conclusion


def test_mean_rewards_over_few_episodes_do_not_count_unless_there_are_no_others():
    lucky = [row(100, 1.0, 2, 90.0), row(1000, 10.0, 120, 20.0), row(2000, 20.0, 240, 40.0)]
    steady = [row(1000, 10.0, 120, 30.0), row(2000, 20.0, 240, 50.0)]
    comparison = compare(write_run("a", lucky), write_run("b", steady))
    assert cells(comparison)["seconds until reward 40.00"] == ("20.0", "20.0")
    comparison = compare("a", write_run("c", [*steady[:1], row(1500, 15.0, 90, 95.0)]))
    assert not any("Few episodes" in note for note in comparison.notes)
    comparison = compare("a", write_run("d", [row(1500, 15.0, 50, 95.0)]))  # this run has no other mean
    assert cells(comparison)["seconds until reward 90.00"] == ("1.00", "15.0")
    assert any("Few episodes" in note for note in comparison.notes)


INCOMPLETE_METRICS = {
    "one iteration": [row(1000, 1.0, loss=0.1)],
    "no episodes": [row(500, 1.0, 0, loss=0.5), row(1000, 2.0, 0, loss=0.4)],
    "only steps": [{"time/total_timesteps": 1000}],
    "no time": [{"time/total_timesteps": 1000, "time/time_elapsed": 0.0}],
    "nulls": [{"time/total_timesteps": 1000, "time/time_elapsed": 1.0, "rollout/ep_rew_mean": None}],
    "not finite": [{"time/fps": 3.0}, row(1000, 1.0, 10, float("nan"), float("inf"))],
    "odd types": [{**row(1000, 1.0, 10, 5.0), "train/loss": "none"}, [1, 2], {}],
}


@pytest.mark.parametrize("rows", INCOMPLETE_METRICS.values(), ids=INCOMPLETE_METRICS)
def test_runs_with_incomplete_metrics_are_compared(rows):
    incomplete, incomplete_too = write_run("incomplete", rows), write_run("incomplete too", rows)
    complete = write_run("complete", [row(1000 * i, 2.0 * i, 100 * i, 10.0 * i, 1 / i) for i in range(1, 4)])
    for comparison in (
        compare(incomplete, complete),
        compare(complete, incomplete),
        compare_runs(incomplete, incomplete_too, "out"),
    ):
        assert "1,000" in cells(comparison)["steps"] and comparison.conclusion.endswith(".")
        assert "nan" not in comparison.as_text() and "inf" not in comparison.as_text()
    assert shown_runs("out/comparison.png")[1] == any("time/time_elapsed" in line for line in rows)


def test_an_incomplete_last_line_of_metrics_is_left_out(pair):
    with (pair[1] / "metrics.jsonl").open("a") as file:
        file.write('{"time/total_timesteps": 7000, "time/time_el')
    assert cells(compare(*pair))["steps"] == ("3,000", "6,000")


def test_a_summary_older_than_the_last_metrics_is_ignored():
    a = write_run("a", [row(1000, 1.0), row(2000, 2.0)], {"steps": 1000, "exit_reason": "timesteps"})
    b = write_run("b", [row(2000, 2.0)], {"steps": 2000, "exit_reason": "timesteps"})
    assert cells(compare(a, b))["ended by"] == ("not finished", "timesteps")


def test_the_best_evaluation_reward_is_in_the_table_if_a_run_has_one(pair):
    evaluated = write_run("e", [row(1000, 1.0, **{"eval/mean_reward": reward}) for reward in (40.0, 80.0, 60.0)])
    assert cells(compare(pair[0], evaluated))["best evaluation reward"] == ("none", "80.00")


def test_notes_say_that_settings_seeds_or_envs_differ_and_how_many_iterations_are_equal(pair):
    rows = [row(1000, 1.0, 100, 10.0, 1.0)]
    more_envs = write_run("more envs", rows, n_envs=16)
    assert any("Not the same work: n_envs differ" in note for note in compare(pair[0], more_envs).notes)
    other_seed = write_run("other seed", rows, seed=2)
    assert any("other seeds" in note for note in compare(pair[0], other_seed).notes)
    comparison = compare(pair[0], write_run("other env", rows, env="Acrobot-v1"))
    assert "the envs differ, so rewards cannot be compared" in comparison.conclusion
    assert not any("until reward" in name for name in cells(comparison))
    note = compare(pair[0], write_run("same settings", rows)).notes[0]
    assert "equal in 1 of 1 shared iterations" in note
    note = compare(pair[0], write_run("other loss", [row(1000, 1.0, 100, 10.0, 1.0000001)])).notes[0]
    assert "equal in 0 of 1 shared iterations" in note


def test_code_that_a_run_names_is_not_imported(pair):
    Path("user_code.py").write_text("open('imported', 'w')\nmake = None\n")
    run = write_run("t", [row(1000, 1.0)], env="user_code.py:make", policy="user_code.py:make")
    assert "user_code.py:make" in cells(compare_runs(pair[0], run, "out"))["env"]
    write_benchmark_metrics(run)
    assert not Path("imported").exists()


def test_without_output_every_comparison_has_a_new_directory_beside_the_first_run(pair):
    first, second = compare_runs(*pair), compare_runs(*pair)
    assert first.report.parent != second.report.parent
    for comparison in (first, second):
        assert comparison.report.parent.parent == Path("runs") and comparison.report.parent.name.startswith(
            "comparison-"
        )
        assert comparison.report.exists() and comparison.picture.exists()


@pytest.mark.parametrize(
    ("a", "b", "output", "complaint"),
    [
        ("runs/a", "nothing", "out", "'nothing' is not a run directory"),
        ("runs/a", "begun", "out", "begun has no metrics yet"),
        ("runs/a", "empty", "out", "empty has no metrics yet"),
        ("runs/a", "broken", "out", "broken is not a run that can be read: n_envs 0"),
        ("runs/a", "runs/../runs/a", "out", "are the same run"),
        ("runs/a", "runs/b", "file", "'file'"),
        ("runs/a", "runs/b", "file/under", "choose another --output"),
    ],
)
def test_usage_errors_are_one_line_and_write_no_files(pair, capsys, a, b, output, complaint):
    (write_run("begun", []) / "metrics.jsonl").unlink()
    write_run("empty", [])
    write_run("broken", [row(1000, 1.0)], n_envs=0)
    Path("file").write_text("")
    before = sorted(Path().rglob("*"))
    assert main(["compare", a, b, "--output", output]) == 2
    err = capsys.readouterr().err
    assert complaint in err and err.startswith("corral compare: ") and len(err.strip().splitlines()) == 1
    assert sorted(Path().rglob("*")) == before


def test_corral_compare_prints_the_table_and_the_paths(pair, capsys):
    assert main(["compare", "runs/a", "runs/b", "--output", "my [comparison]"]) == 0
    out = capsys.readouterr().out
    assert "speed-up" in out and "2.00" in out and "num_workers" in out and "times its speed" in out
    assert "picture: my [comparison]" in out and Path("my [comparison]/comparison.png").exists()


def refuse_constant(name):
    """Raise for NaN and Infinity, which Python's parser accepts but JSON does not have."""
    raise AssertionError(f"{name} is not JSON")


def test_benchmark_metrics_are_valid_json_with_the_values_of_the_run():
    rows = [row(1000, 1.8, 0), row(2000, 3.6, 30, 12.0, float("nan")), row(3000, 5.4, 60, 14.0, 2.0)]
    run = write_run("r", rows, {"steps": 3000, "num_workers": 3}, backend="process", n_envs=8)
    path = write_benchmark_metrics(run)
    assert path.resolve() == (run / "benchmark_metrics.json").resolve()
    metrics = json.loads(path.read_text(), parse_constant=refuse_constant)
    history = metrics.pop("history")
    assert metrics == {
        "mode": "parallel",
        "env": "CartPole-v1",
        "seed": 1,
        "n_envs": 8,
        "num_workers": 3,
        "num_envs_per_worker": 3,
        "backend": "process",
        "steps": 3000,
        "episodes": 60,
        "seconds": 5.4,
        "fps": pytest.approx(3000 / 5.4),
        "mean_reward": 14.0,
        "mean_loss": 2.0,
    }
    assert history["steps"] == [1000, 2000, 3000] and history["hours"] == pytest.approx([0.0005, 0.001, 0.0015])
    assert history["reward"] == [None, 12.0, 14.0] and history["loss"] == [None, None, 2.0]
    assert history["fps"] == pytest.approx([1000 / 1.8] * 3)


def test_iterations_of_trained_runs_with_the_same_seed_are_equal():
    settings = {"n_envs": 4, "n_steps": 32, "batch_size": 32, "n_epochs": 1, "seed": 3, "eval_freq": 0, "quiet": True}
    a = corral.train("CartPole-v1", timesteps=384, backend="serial", **settings).run_dir
    b = corral.train("CartPole-v1", timesteps=512, backend="process", num_workers=2, **settings).run_dir
    comparison = compare_runs(a, b, "out")
    assert cells(comparison)["steps"] == ("384", "512")
    assert comparison.speed_up is not None and comparison.speed_up > 0
    assert any("equal in 3 of 3 shared iterations" in note for note in comparison.notes)
    assert {line.name for line in comparison.differences} == {"timesteps", "backend", "num_workers"}
    assert shown_runs(comparison.picture) == [True, True]
