"""benchmarks/curves.py reads the learning curves that it has written and reports them as tables and plots."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def curves(monkeypatch):
    """Return the module benchmarks/curves.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import curves

    return curves


def write_curve(name, rewards, step_interval=100):
    """Write a learning curve with an evaluation every so many steps."""
    lines = [{"steps": step_interval * (i + 1), "reward": reward, "seconds": i} for i, reward in enumerate(rewards)]
    Path(f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_report_has_a_table_and_a_plot_of_each_task_that_was_learned(curves, tmp_path):
    write_curve("corral_pong_1", [0, 1, 2, 3])
    write_curve("corral_pong_2", [2, 3, 4, 5])
    write_curve("sb3_pong_1", [0, 0, 0, 0, 8])
    write_curve("random_coinrun_1", [3])
    write_curve("sb3_other_1", [3])
    curves.report(tmp_path, tmp_path / "curves.md", tmp_path / "images")
    text = (tmp_path / "curves.md").read_text()
    assert "| library | number of seeds | 100 | 200 | 300 | 400 | mean of the curve |" in text
    assert "| Corral | 2 | 1.0 | 2.0 | 3.0 | 4.0 | 2.5 ± 1.4 |" in text
    assert "| Stable-Baselines3 | 1 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 |" in text
    assert [path.name for path in (tmp_path / "images").iterdir()] == [
        "curves-pong.png"
    ]  # coinrun has only a random baseline
    assert "](../docs/images/curves-pong.png)" in text and "other" not in text


def test_a_library_that_does_not_run_the_task_is_refused():
    command = [sys.executable, str(BENCHMARKS / "curves.py"), "run", "coinrun", "--library", "sb3"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert completed.returncode == 2 and "coinrun is run with corral or random, not with sb3" in completed.stderr
