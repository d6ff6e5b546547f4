"""Malicious sweep directories are refused in one line or read safely, and nothing outside changes."""

import json
import os
import shutil

import pytest

from corral.sweeps.api import sweep as run_sweep
from tests.faults.test_hostile_runs import contents_of

pytest.importorskip("optuna")
SMALL = {
    "timesteps": 64,
    "n_envs": 2,
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 1,
    "eval_freq": 0,
    "seed": 1,
    "backend": "serial",
    "tensorboard": False,
    "quiet": True,
}


@pytest.fixture(scope="module")
def finished_sweep(tmp_path_factory):
    """Return the directory of a small finished sweep."""
    path = tmp_path_factory.mktemp("finished") / "sweep"
    search = {"learning_rate": "log:1e-4:1e-3"}
    return run_sweep("CartPole-v1", search=search, trials=2, output_dir=str(path), **SMALL).sweep_dir


def change_request(**changes):
    """Change settings in ``sweep.yaml``."""

    def change(sweep):
        file = sweep / "sweep.yaml"
        lines = [line for line in file.read_text().splitlines() if line.partition(":")[0] not in changes]
        file.write_text("\n".join([*lines, *(f"{name}: {text}" for name, text in changes.items())]) + "\n")

    return change


def append_to_journal(text):
    """Append a line to the journal."""

    def change(sweep):
        file = sweep / "journal.log"
        file.write_text(file.read_text() + text + "\n")

    return change


def change_events(kind, **changes):
    """Change values in the journal's events of one kind; None removes a value."""

    def change(sweep):
        events = [json.loads(line) for line in (sweep / "journal.log").read_text().splitlines()]
        for event in events:
            if event["op_code"] == kind:
                event.update(changes)
                for name in [name for name, value in changes.items() if value is None]:
                    del event[name]
        (sweep / "journal.log").write_text("".join(json.dumps(event) + "\n" for event in events))

    return change


def without_events(kind):
    """Remove the events of one kind from the journal."""

    def change(sweep):
        lines = (sweep / "journal.log").read_text().splitlines(keepends=True)
        (sweep / "journal.log").write_text("".join(line for line in lines if json.loads(line)["op_code"] != kind))

    return change


def append_to_summaries(text):
    """Append a value to the summaries of all trials."""

    def change(sweep):
        for file in sweep.glob("trials/*/summary.json"):
            summary = file.read_text().rstrip().removesuffix("}").rstrip()
            file.write_text(f"{summary}, {text}}}")

    return change


def append_incomplete_line(sweep):
    """Append an incomplete line to the journal."""
    with (sweep / "journal.log").open("a") as file:
        file.write('{"op_code": 0')


def hard_linked_journal(sweep):
    """Replace the journal by a hard link to a file outside that ends in an incomplete line."""
    journal, outside = sweep / "journal.log", sweep.parent / "outside" / "victim.txt"
    append_incomplete_line(sweep)
    outside.write_bytes(journal.read_bytes())
    journal.unlink()
    os.link(outside, journal)


STATE, PARAM, INTERMEDIATE_VALUE = 6, 5, 7
"""Kinds of events in Optuna's journal: a trial changed its state, got a parameter, or reported an intermediate value."""
DAMAGED = [
    *(
        (f"line-{text[:12]}", append_to_journal(text), "journal.log is damaged at line")
        for text in ("[1]", "null", "7", "{")
    ),
    *((f"line-{text[:12]}", append_to_journal(text), "journal.log is damaged") for text in ("{}", '{"op_code": 99}')),
    ("op-code", change_events(STATE, op_code=99), "journal.log is damaged"),
    ("op-code-text", change_events(STATE, op_code="x"), "journal.log is damaged"),
    ("no-trial", change_events(STATE, trial_id=None), "journal.log is damaged"),
    (
        "distribution",
        change_events(PARAM, distribution='{"name": "Other", "attributes": {}}'),
        "journal.log is damaged",
    ),
    ("setting", change_events(PARAM, param_name="output_dir"), "journal.log is damaged"),
    ("param", change_events(PARAM, param_value_internal=-1.0), "journal.log is damaged"),
    ("param-outside", change_events(PARAM, param_value_internal=0.5), "journal.log is damaged"),
    ("no-params", without_events(PARAM), "journal.log is damaged"),
    ("values-text", change_events(STATE, values=["x"]), "journal.log is damaged"),
    ("values-large", change_events(STATE, values=[10**400]), "journal.log is damaged"),
    ("reached", change_events(INTERMEDIATE_VALUE, intermediate_value="x"), "journal.log is damaged"),
    ("directions", change_events(0, directions=[2, 2]), "journal.log is damaged"),
    ("direction", change_events(0, directions=[1]), "journal.log is damaged"),
    ("hard-link", hard_linked_journal, "hard link"),
    *(
        (f"{name}-{text[:6]}", change_request(**{name: text}), "sweep.yaml is damaged")
        for name, texts in {
            "trials": ("null", "0x" + "F" * 4000, "2.5", "true", "0", "10000000", "x"),
            "jobs": ("true", "1.5", "0", "null"),
            "seeds": ("true", "1.0", "'1'"),
            "seed": ("null", "1.5", "-1"),
            "prune": ("x", "1", "null"),
            "search": ("null", "[]", "{learning_rate: 1}"),
            "presets": ("{A: {}}", "[]", "{A: 1}"),
            "env": ("7", "null"),
            "settings": ("[]", "null"),
            "other": ("1",),
        }.items()
        for text in texts
    ),
]


def try_resume(finished_sweep, forked_commands, tmp_path, change):
    """Change a copy of the sweep, resume it, and check that nothing outside changed and errors are one line."""
    directory, logs = tmp_path / "directory", tmp_path / "logs"
    logs.mkdir()
    shutil.copytree(finished_sweep, directory / "sweep")
    (directory / "outside").mkdir()
    (directory / "outside" / "victim.txt").write_text("keep me\n")
    change(directory / "sweep")
    before = contents_of(directory, excluding=directory / "sweep")
    ended = forked_commands.run(("resume", "sweep"), directory, logs)
    assert not ended.timed_out and "Traceback" not in ended.err + ended.out, ended
    assert contents_of(directory, excluding=directory / "sweep") == before, ended
    problems = [line for line in ended.err.splitlines() if line.startswith("corral ")]
    assert len(problems) == (ended.code != 0) and len(ended.err) < 3000, ended
    return ended


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in DAMAGED], ids=[row[0] for row in DAMAGED])
def test_a_hostile_sweep_directory_is_refused(tmp_path, finished_sweep, forked_commands, change, message):
    ended = try_resume(finished_sweep, forked_commands, tmp_path, change)
    assert ended.code == 2 and message in ended.err, ended


@pytest.mark.parametrize(
    "change",
    [
        lambda sweep: None,
        append_incomplete_line,
        *(
            append_to_summaries(text)
            for text in ('"steps": 1e999', '"fps": 1' + "0" * 400, '"mean_reward": -1e308', '"seconds": "x"')
        ),
    ],
    ids=["unchanged", "incomplete-line", "steps", "fps", "mean-reward", "seconds"],
)
def test_unusable_data_in_a_sweep_directory_is_ignored(tmp_path, finished_sweep, forked_commands, change):
    assert try_resume(finished_sweep, forked_commands, tmp_path, change).code == 0
