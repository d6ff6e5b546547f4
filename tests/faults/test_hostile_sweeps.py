"""Directories of sweeps that an enemy made: each is refused in one line, or read safely, and nothing outside changes."""

import json
import os
import shutil

import pytest

from corral.sweeps.api import sweep as run_sweep
from tests.faults.test_hostile_runs import look_at

pytest.importorskip("optuna")
SMALL = {"timesteps": 64, "n_envs": 2, "n_steps": 32, "batch_size": 32, "n_epochs": 1, "eval_freq": 0, "seed": 1}
SMALL = {**SMALL, "backend": "serial", "tensorboard": False, "quiet": True}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "sweep"
    search = {"learning_rate": "log:1e-4:1e-3"}
    return run_sweep("CartPole-v1", search=search, trials=2, output_dir=str(path), **SMALL).sweep_dir


def asked(**changes):
    """Other lines in ``sweep.yaml``."""

    def change(sweep):
        file = sweep / "sweep.yaml"
        lines = [line for line in file.read_text().splitlines() if line.partition(":")[0] not in changes]
        file.write_text("\n".join([*lines, *(f"{name}: {text}" for name, text in changes.items())]) + "\n")

    return change


def added(text):
    """Another line at the end of the journal."""

    def change(sweep):
        file = sweep / "journal.log"
        file.write_text(file.read_text() + text + "\n")

    return change


def forged(kind, **changes):
    """Other values in the journal's lines of one kind; None removes one."""

    def change(sweep):
        events = [json.loads(line) for line in (sweep / "journal.log").read_text().splitlines()]
        for event in events:
            if event["op_code"] == kind:
                event.update(changes)
                for name in [name for name, value in changes.items() if value is None]:
                    del event[name]
        (sweep / "journal.log").write_text("".join(json.dumps(event) + "\n" for event in events))

    return change


def removed(kind):
    """A journal without its lines of one kind."""

    def change(sweep):
        lines = (sweep / "journal.log").read_text().splitlines(keepends=True)
        (sweep / "journal.log").write_text("".join(line for line in lines if json.loads(line)["op_code"] != kind))

    return change


def told(text):
    """Other numbers in the summaries of the trials."""

    def change(sweep):
        for file in sweep.glob("trials/*/summary.json"):
            whole = file.read_text().rstrip().removesuffix("}").rstrip()
            file.write_text(f"{whole}, {text}}}")

    return change


def half_a_line(sweep):
    with (sweep / "journal.log").open("a") as file:
        file.write('{"op_code": 0')


def second_name(sweep):
    """The journal is a file outside, and its end is cut off."""
    journal, outside = sweep / "journal.log", sweep.parent / "outside" / "victim.txt"
    half_a_line(sweep)
    outside.write_bytes(journal.read_bytes())
    journal.unlink()
    os.link(outside, journal)


STATE, PARAM, REACHED = 6, 5, 7
DAMAGED = [
    *((f"line-{text[:12]}", added(text), "journal.log is damaged at line") for text in ("[1]", "null", "7", "{")),
    *((f"line-{text[:12]}", added(text), "journal.log is damaged") for text in ("{}", '{"op_code": 99}')),
    ("op-code", forged(STATE, op_code=99), "journal.log is damaged"),
    ("op-code-text", forged(STATE, op_code="x"), "journal.log is damaged"),
    ("no-trial", forged(STATE, trial_id=None), "journal.log is damaged"),
    ("distribution", forged(PARAM, distribution='{"name": "Other", "attributes": {}}'), "journal.log is damaged"),
    ("setting", forged(PARAM, param_name="output_dir"), "journal.log is damaged"),
    ("param", forged(PARAM, param_value_internal=-1.0), "journal.log is damaged"),
    ("param-outside", forged(PARAM, param_value_internal=0.5), "journal.log is damaged"),
    ("no-params", removed(PARAM), "journal.log is damaged"),
    ("values-text", forged(STATE, values=["x"]), "journal.log is damaged"),
    ("values-large", forged(STATE, values=[10**400]), "journal.log is damaged"),
    ("reached", forged(REACHED, intermediate_value="x"), "journal.log is damaged"),
    ("directions", forged(0, directions=[2, 2]), "journal.log is damaged"),
    ("direction", forged(0, directions=[1]), "journal.log is damaged"),
    ("second-name", second_name, "hard link"),
    *(
        (f"{name}-{text[:6]}", asked(**{name: text}), "sweep.yaml is damaged")
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


def try_resume(finished, warm, tmp_path, change):
    place, logs = tmp_path / "place", tmp_path / "logs"
    logs.mkdir()
    shutil.copytree(finished, place / "sweep")
    (place / "outside").mkdir()
    (place / "outside" / "victim.txt").write_text("keep me\n")
    change(place / "sweep")
    before = look_at(place, leave=place / "sweep")
    ended = warm.run(("resume", "sweep"), place, logs)
    assert not ended.timed_out and "Traceback" not in ended.err + ended.out, ended
    assert look_at(place, leave=place / "sweep") == before, ended
    problems = [line for line in ended.err.splitlines() if line.startswith("corral ")]
    assert len(problems) == (ended.code != 0) and len(ended.err) < 3000, ended
    return ended


@pytest.mark.parametrize(("change", "says"), [row[1:] for row in DAMAGED], ids=[row[0] for row in DAMAGED])
def test_a_hostile_directory_of_a_sweep_is_refused(tmp_path, finished, warm, change, says):
    ended = try_resume(finished, warm, tmp_path, change)
    assert ended.code == 2 and says in ended.err, ended


@pytest.mark.parametrize(
    "change",
    [
        lambda sweep: None,
        half_a_line,
        *(told(text) for text in ('"steps": 1e999', '"fps": 1' + "0" * 400, '"mean_reward": -1e308', '"seconds": "x"')),
    ],
    ids=["nothing", "half-a-line", "steps", "fps", "mean-reward", "seconds"],
)
def test_what_cannot_be_used_in_the_directory_of_a_sweep_is_left_out(tmp_path, finished, warm, change):
    assert try_resume(finished, warm, tmp_path, change).code == 0
