"""The throughput benchmark measures sections, merges them into its JSON file and writes a report."""

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
def test_every_benchmark_script_can_be_imported(script):
    """The script runs under another module name: its imports are executed, its measurements are not."""
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='benchmark')"
    completed = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr


def make_section(metrics, competitors, **overrides):
    """Return a section of throughput.json; ``competitors`` has the values of each metric, a list for each repeat."""
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
    } | overrides


@pytest.fixture
def report(monkeypatch):
    """Return the module that writes the report."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import throughput_report

    return throughput_report


def run_throughput(*arguments):
    """Run benchmarks/throughput.py and return the completed process."""
    command = [sys.executable, str(BENCHMARKS / "throughput.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def claims_in(text):
    """Return the table of claims in a report: requirement -> [measured, met, aim]."""
    rows = [line[2:].split("|") for line in text.splitlines() if line.startswith("| ")]
    start = next(i for i, row in enumerate(rows) if row[0] == "requirement ")
    return {row[0].strip(): [cell.strip() for cell in row[1:4]] for row in rows[start + 1 : start + 16]}


@pytest.mark.deep
def test_a_measured_section_is_merged_with_the_sections_in_the_file(tmp_path):
    pytest.importorskip("stable_baselines3")
    existing_section = make_section(["start_s", "worker_mb"], {"corral": [[0.5, 8.0]]})
    (tmp_path / "throughput.json").write_text(json.dumps({"sections": {"start": existing_section}}))
    completed = run_throughput("--only", "vec-only", "--repeats", "1", "--seconds", "0.3", "--output", str(tmp_path))
    assert completed.returncode == 0, completed.stderr
    sections = json.loads((tmp_path / "throughput.json").read_text())["sections"]
    assert list(sections) == ["vec-only", "start"] and sections["start"] == existing_section
    runs = {run["competitor"]: run for run in sections["vec-only"]["runs"]}
    assert list(runs) == ["corral", "sb3-subproc", "sb3-dummy", "gymnasium-async", "gymnasium-sync"]
    assert all(run["steps_per_s"] > 0 and run["seconds"] >= 0.3 for run in runs.values())
    assert all(
        run["steps_per_s"] * run["seconds"] == pytest.approx(run["steps"]) and run["steps"] % (64 * 8) == 0
        for run in runs.values()
    )
    assert sections["vec-only"]["measured"]["machine"]["cores"] >= 1
    text = (tmp_path / "throughput.md").read_text(encoding="utf-8")
    assert "## vec-only" in text and "Abacus" in text and str(tmp_path) not in text
    assert f"{runs['gymnasium-sync']['steps_per_s']:,.0f}" in text
    assert (tmp_path / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert len(re.findall(r"^vec-only .* 1/1: [\d,]+ steps/s\b", completed.stdout, flags=re.M)) == 5


def test_corral_and_sb3_are_timed_in_the_same_way():
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


def test_the_report_says_of_every_claim_whether_it_is_met(report, tmp_path):
    sections = {
        "cartpole-8": make_section(
            ["steps_per_s"],
            {"corral": [[30_000], [50_000], [36_000]], "sb3-dummy": [[9_000], [10_000], [8_000]], "sb3-subproc": [[1]]},
            threads={"sb3-dummy": {"one_thread": 9_500.0, "torch_default": 7_000.0, "used": 1}},
        ),
        "work-0.8ms": make_section(
            ["steps_per_s"], {"corral": [[1_700]], "sb3-dummy": [[900]], "sb3-subproc": [[1_000]], "bare": [[2_000]]}
        ),
        "start": make_section(["start_s", "worker_mb"], {"corral": [[1.5, 41.0]]}),
        "wall-clock": make_section(
            ["seconds_to_reward"], {"corral": [[4.0], [5.0], [6.0]], "sb3-dummy": [[10.0], [12.5], [None]]}
        ),
    }
    report.write_report(sections, tmp_path)
    text = (tmp_path / "throughput.md").read_text(encoding="utf-8")
    claims = claims_in(text)
    assert len(claims) == len(report.CLAIMS) == 15
    assert claims["CartPole, 8 envs: at least 3 × the better SB3"] == ["4.00 × (3.33 to 5.00)", "yes", "5 ×: no"]
    assert claims["0.8 ms of work: at least 90% of bare stepping"] == ["85% (85% to 85%)", "**no**", ""]
    assert claims["0.8 ms of work: at least 1.8 × the better SB3"][:2] == ["1.70 × (1.70 to 1.70)", "**no**"]
    assert claims["one more worker: less than 40 MB of its own"][:2] == ["41.0 MB", "**no**"]
    assert claims["8 workers start in less than 2 s"][:2] == ["1.50 s", "yes"]
    assert claims["CartPole to 475 in at most a third of SB3's time"][:2] == ["2.50 × (2.50 to ∞)", "**no**"]
    assert claims["masks: at least 3 × the better MaskablePPO"][0] == "not measured"
    assert "| Corral | 36,000 | 30,000 to 50,000 | 4.00 |" in text
    assert "10.0 to not reached" in text and "chose process with 2 workers (3 of 3 runs)" in text
    assert "9,500 steps/s with one thread" in text
    assert (tmp_path / "throughput.png").stat().st_size > 10_000


def test_the_report_names_the_machine_of_each_section(report):
    measured_elsewhere = MEASURED | {"machine": MEASURED["machine"] | {"cpu": "Slide rule"}}
    sections = {
        "vec-only": make_section(["steps_per_s"], {"corral": [[1.0]]}),
        "start": make_section(["start_s", "worker_mb"], {"corral": [[1.0, 1.0]]}, measured=measured_elsewhere),
    }
    lines = report.report_text(sections).splitlines()
    assert any(line.startswith("vec-only: ") and "Abacus" in line for line in lines)
    assert any(line.startswith("start: ") and "Slide rule" in line for line in lines)


def test_a_report_without_measurements_is_an_error(tmp_path):
    completed = run_throughput("--report", "--output", str(tmp_path))
    assert completed.returncode == 2 and "no throughput.json to report" in completed.stderr
