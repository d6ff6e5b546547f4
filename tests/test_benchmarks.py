"""The throughput benchmark measures, merges and reports."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MEASURED = {
    "date": "2026-01-01",
    "command": "python benchmarks/throughput.py",
    "repeats": 3,
    "seconds": 8.0,
    "machine": {"cpu": "Abacus", "cores": 2, "ram_gb": 8, "os": "Linux 6.1"},
    "versions": {"python": "3.11", "corral": "0.1.0"},
}


@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("*.py")), ids=lambda script: script.stem)
def test_every_script_starts(script):
    """What it imports is there; what it measures takes long."""
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='benchmark')"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def fabricated(metrics, competitors, **more):
    """A section of the json: competitors with the values they measured, for each metric."""
    runs = [
        {"competitor": name, "repeat": i, "busy_before_percent": 1.0, "backend": "process", "num_workers": 2}
        | dict(zip(metrics, values, strict=True))
        for name, repeats in competitors.items()
        for i, values in enumerate(repeats)
    ]
    jobs = {name: {"backend": "auto"} if name == "corral" else {} for name in competitors}
    return {
        "measured": MEASURED,
        "work": "some work",
        "metrics": metrics,
        "threads": {},
        "jobs": jobs,
        "runs": runs,
    } | more


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import throughput_report

    return throughput_report


def throughput(*words):
    command = [sys.executable, str(BENCHMARKS / "throughput.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def verdicts(text):
    """The claims table: requirement to (measured, met, aim)."""
    rows = [line[2:].split("|") for line in text.splitlines() if line.startswith("| ")]
    start = next(i for i, row in enumerate(rows) if row[0] == "requirement ")
    return {row[0].strip(): [cell.strip() for cell in row[1:4]] for row in rows[start + 1 : start + 16]}


@pytest.mark.deep
def test_a_section_is_measured_and_merged_with_those_that_are_there(tmp_path):
    pytest.importorskip("stable_baselines3")
    kept = fabricated(["start_s", "worker_mb"], {"corral": [[0.5, 8.0]]})
    (tmp_path / "throughput.json").write_text(json.dumps({"sections": {"start": kept}}))
    done = throughput("--only", "vec-only", "--repeats", "1", "--seconds", "0.3", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    sections = json.loads((tmp_path / "throughput.json").read_text())["sections"]
    assert list(sections) == ["vec-only", "start"] and sections["start"] == kept
    measured = {run["competitor"]: run for run in sections["vec-only"]["runs"]}
    assert list(measured) == ["corral", "sb3-subproc", "sb3-dummy", "gymnasium-async", "gymnasium-sync"]
    assert all(run["steps_per_s"] > 0 and run["seconds"] >= 0.3 for run in measured.values())
    assert all(
        run["steps_per_s"] * run["seconds"] == pytest.approx(run["steps"]) and run["steps"] % (64 * 8) == 0
        for run in measured.values()
    )
    assert sections["vec-only"]["measured"]["machine"]["cores"] >= 1
    text = (tmp_path / "throughput.md").read_text(encoding="utf-8")
    assert "## vec-only" in text and "Abacus" in text and str(tmp_path) not in text
    assert f"{measured['gymnasium-sync']['steps_per_s']:,.0f}" in text
    assert (tmp_path / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert len(re.findall(r"^vec-only .* 1/1: [\d,]+ steps/s\b", done.stdout, flags=re.M)) == 5


def test_trainers_are_timed_alike():
    pytest.importorskip("stable_baselines3")
    shared = {
        "env": "CartPole-v1",
        "n_envs": 2,
        "settings": {"n_steps": 32, "batch_size": 16, "n_epochs": 1},
        "seed": 1,
        "seconds": 0.1,
    }
    for job in (
        {"kind": "train-corral", "backend": "serial"},
        {"kind": "train-sb3", "vec_env": "dummy", "threads": 1},
    ):
        command = [sys.executable, str(BENCHMARKS / "throughput_runs.py"), json.dumps(shared | job)]
        result = json.loads(subprocess.check_output(command, text=True, timeout=600).splitlines()[-1])
        assert result["steps"] % 64 == 0 and result["seconds"] >= 0.1
        assert result["steps_per_s"] == pytest.approx(result["steps"] / result["seconds"])


def test_the_report_judges_every_claim(report, tmp_path):
    sections = {
        "cartpole-8": fabricated(
            ["steps_per_s"],
            {"corral": [[30_000], [50_000], [36_000]], "sb3-dummy": [[9_000], [10_000], [8_000]], "sb3-subproc": [[1]]},
            threads={"sb3-dummy": {"one_thread": 9_500.0, "torch_default": 7_000.0, "used": 1}},
        ),
        "work-0.8ms": fabricated(
            ["steps_per_s"], {"corral": [[1_700]], "sb3-dummy": [[900]], "sb3-subproc": [[1_000]], "bare": [[2_000]]}
        ),
        "start": fabricated(["start_s", "worker_mb"], {"corral": [[1.5, 41.0]]}),
        "wall-clock": fabricated(
            ["seconds_to_reward"], {"corral": [[4.0], [5.0], [6.0]], "sb3-dummy": [[10.0], [12.5], [None]]}
        ),
    }
    report.write_report(sections, tmp_path)
    text = (tmp_path / "throughput.md").read_text(encoding="utf-8")
    found = verdicts(text)
    assert len(found) == len(report.CLAIMS) == 15
    assert found["CartPole, 8 envs: at least 3 × the better SB3"] == ["4.00 × (3.33 to 5.00)", "yes", "5 ×: no"]
    assert found["0.8 ms of work: at least 90% of bare stepping"] == ["85% (85% to 85%)", "**no**", ""]
    assert found["0.8 ms of work: at least 1.8 × the better SB3"][:2] == ["1.70 × (1.70 to 1.70)", "**no**"]
    assert found["one more worker: less than 40 MB of its own"][:2] == ["41.0 MB", "**no**"]
    assert found["8 workers start in less than 2 s"][:2] == ["1.50 s", "yes"]
    assert found["CartPole to 475 in at most a third of SB3's time"][:2] == ["2.50 × (2.50 to ∞)", "**no**"]
    assert found["masks: at least 3 × the better MaskablePPO"][0] == "not measured"
    assert "| Corral | 36,000 | 30,000 to 50,000 | 4.00 |" in text
    assert "10.0 to not reached" in text and "chose process with 2 workers (3 of 3 runs)" in text
    assert "9,500 steps/s with one thread" in text
    assert (tmp_path / "throughput.png").stat().st_size > 10_000


def test_sections_from_different_machines_are_told_apart(report):
    elsewhere = MEASURED | {"machine": MEASURED["machine"] | {"cpu": "Slide rule"}}
    sections = {
        "vec-only": fabricated(["steps_per_s"], {"corral": [[1.0]]}),
        "start": fabricated(["start_s", "worker_mb"], {"corral": [[1.0, 1.0]]}, measured=elsewhere),
    }
    lines = report.report_text(sections).splitlines()
    assert any(line.startswith("vec-only: ") and "Abacus" in line for line in lines)
    assert any(line.startswith("start: ") and "Slide rule" in line for line in lines)


def test_nothing_to_report_is_an_error(tmp_path):
    done = throughput("--report", "--output", str(tmp_path))
    assert done.returncode == 2 and "no throughput.json to report" in done.stderr
