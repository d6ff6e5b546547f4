"""Malicious run directories: every attack ends in one line, in limited time, and changes nothing outside.

Each row of ``ATTACKS`` changes a small finished run and names the command that opens it.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import corral

SMALL = {
    "n_envs": 2,
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 1,
    "eval_freq": 64,
    "eval_episodes": 1,
    "seed": 1,
    "backend": "serial",
    "timesteps": 128,
    "checkpoint_freq": 64,
}
RESUME = ("resume", "run", "--timesteps", "192", "--keep-checkpoints", "1")
EVAL = ("eval", "run", "--episodes", "1", "--max-steps", "20")
PLAY = ("play", "run", "--episodes", "1", "--max-steps", "5", "--save", "clip.gif")
COMPARE = ("compare", "run", "other", "--output", "comparison")
TRAIN = ("train", "CartPole-v1", "--timesteps", "64", "--n-envs", "2", "--n-steps", "32", "--backend", "serial")
TRAIN = (*TRAIN, "--batch-size", "32", "--eval-freq", "0", "--output-dir", "run")


@dataclass(frozen=True)
class Attack:
    """A change of a run directory, and how the command that opens the run must end."""

    name: str
    change: Callable[[Path], object]
    """Gets the run directory. The directory ``outside`` is beside it, and commands run in their parent directory."""
    command: tuple[str, ...]
    code: int
    message: str
    """Part of the text on stderr."""
    learner: str = "numpy"
    """The learner of the finished run that is changed."""


# ---- changes of a run directory -----------------------------------------------------------------------------------------


def checkpoints(run):
    """Return the directories of all checkpoints of a run."""
    return sorted([*run.glob("checkpoints/ckpt-*"), *run.glob("best/ckpt-*")])


def update_manifest(path):
    """Write the hashes and sizes of a checkpoint's changed files into its manifest."""
    files = [file for file in path.iterdir() if file.name != "manifest.json" and file.is_file()]
    data = {file.name: file.read_bytes() for file in files}
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
    manifest["bytes"] = {name: len(content) for name, content in data.items()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def link(name, target="victim.txt"):
    """Replace a file or directory of the run by a symbolic link to one outside."""

    def change(run):
        path, outside = run / name, (run.parent / "outside" / target).absolute()
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, outside, dirs_exist_ok=True)
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(outside)

    return change


def nested_directories(name, levels=25):
    """Make directories that are nested deeply."""
    return lambda run: (run / name).joinpath(*["d"] * levels).mkdir(parents=True)


def hard_link(name):
    """Replace a file of the run by a hard link to one outside."""

    def change(run):
        (run / name).unlink(missing_ok=True)
        os.link(run.parent / "outside" / "victim.txt", run / name)

    return change


def in_empty_directory(change):
    """Apply a change to an empty directory instead of a run."""

    def emptied(run):
        shutil.rmtree(run)
        run.mkdir()
        change(run)

    return emptied


def named_pipe(name):
    """Replace a file by a named pipe."""
    return replace_files(name, os.mkfifo)


def endless_device(name):
    """Replace a file by a device that can be read without end, /dev/zero."""
    return replace_files(name, lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)))


def sparse_file(name, size=1 << 40):
    """Make files very large without using disk space; manifests have the new size."""

    def grow(path):
        path.touch()
        os.truncate(path, size)

    def change(run):
        for path in run.glob(name):
            grow(path)
            if path.parent in checkpoints(run):
                manifest = path.with_name("manifest.json")
                manifest_data = {**json.loads(manifest.read_text())} if path != manifest else None
                if manifest_data is not None and "bytes" in manifest_data:
                    manifest_data["bytes"][path.name] = size
                    manifest.write_text(json.dumps(manifest_data))

    return change


def replace_files(name, make):
    """Replace files whose path matches ``name`` by what ``make`` creates."""

    def change(run):
        paths = list(run.glob(name)) or [run / name]
        for path in paths:
            path.unlink(missing_ok=True)
            make(path)

    return change


def change_config(**changes):
    """Change settings in ``config.yaml``; a value may be any YAML."""

    def change(run):
        lines = (run / "config.yaml").read_text().splitlines()
        kept = [line for line in lines if line.partition(":")[0] not in changes]
        (run / "config.yaml").write_text("\n".join([*kept, *(f"{k}: {v}" for k, v in changes.items())]) + "\n")

    return change


def append_to(name, data):
    """Append to a file."""

    def change(run):
        with (run / name).open("ab") as file:
            file.write(data)

    return change


def change_summary(**changes):
    """Change values of ``summary.json``."""

    def change(run):
        values = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps({**values, **changes}))

    return change


def malicious_modules(*names):
    """Put modules into the current directory that create a file outside when they are imported."""

    def change(run):
        created = (run.parent / "outside" / "executed").absolute()
        for name in names:
            (run.parent / name).write_text(
                f"open({str(created)!r}, 'w').close()\ndef make(*args, **kwargs):\n    raise SystemExit('executed')\n"
            )

    return change


def all_of(*changes):
    """Apply several changes."""
    return lambda run: [change(run) for change in changes]


def set_state_value(path, value):
    """Set a value in every ``state.json``; ``value`` is JSON text."""

    def change(run):
        for checkpoint in checkpoints(run):
            data = json.loads((checkpoint / "state.json").read_text())
            parent, *keys = data, *path.split("/")
            for key in keys[:-1]:
                parent = parent[key]
            parent[keys[-1]] = "FORGED"
            (checkpoint / "state.json").write_text(json.dumps(data).replace('"FORGED"', value))
            update_manifest(checkpoint)

    return change


def without_state_key(key):
    """Remove a key from every ``state.json``."""

    def change(run):
        for checkpoint in checkpoints(run):
            data = json.loads((checkpoint / "state.json").read_text())
            del data[key]
            (checkpoint / "state.json").write_text(json.dumps(data))
            update_manifest(checkpoint)

    return change


def change_tensors(file, forge):
    """Change the arrays of a file in every checkpoint; ``forge`` gets and returns them by name."""

    def change(run):
        for checkpoint in checkpoints(run):
            if checkpoint.name == "ckpt-000000000000":
                continue  # it has no optimizer moments yet, and is not the newest
            arrays = forge(load_file(checkpoint / f"{file}.safetensors"))
            save_file(contiguous(arrays), checkpoint / f"{file}.safetensors")
            update_manifest(checkpoint)

    return change


def contiguous(arrays):
    """Return contiguous copies, as safetensors needs; ``np.ascontiguousarray`` would change the shape () to (1,)."""
    return {name: array.copy(order="C") for name, array in arrays.items()}


def change_arrays(start, make):
    """Change every array whose name starts with ``start``."""

    def forge(arrays):
        names = [name for name in arrays if name.startswith(start)]
        assert names
        return {**arrays, **{name: make(arrays[name]) for name in names}}

    return forge


def without_arrays(start):
    """Remove every array whose name starts with ``start``."""
    return lambda arrays: {name: array for name, array in arrays.items() if not name.startswith(start)}


def without_actions(forge):
    """Remove the actions since the last reset, then apply another change."""
    return lambda arrays: forge(without_arrays("actions/")(arrays))


NO_NETWORK = {"net_arch": "null", "score_actions": "null", "learner": "torch", "learner_shares": "null"}
ALIAS_BOMB = (
    "{" + ", ".join(["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]) + "}"
)
MERGE_BOMB = "\n" + "\n".join(
    ["  m0: &m0 {k: 1}", *(f"  m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}" for i in range(1, 12))]
)
LARGE_SPACE = '{"type": "Box", "shape": [4000, 4000], "dtype": "<f4", "low": 0, "high": 1}'
DEEPLY_NESTED = "[" * 900 + "]" * 900
FILES = (".lock", "config.yaml", "config.tmp", "metrics.jsonl", "metrics.tmp", "progress.csv", "progress.csv.tmp")
FILES = (*FILES, "summary.json", "summary.tmp", "matches.json", "faults/env-0-seed-1-step-1.json", "tensorboard/events")
FOLDERS = ("checkpoints", "best", "tensorboard", "faults", "phases", "checkpoints/.saving-1", "phases/one")
CHECKPOINT_PATHS = ("checkpoints/ckpt-000000000128", "checkpoints/ckpt-000000000128/policy.safetensors")
CHECKPOINT_PATHS = (*CHECKPOINT_PATHS, "checkpoints/ckpt-000000000128/manifest.json", "best/.saving-1")

ATTACKS = [
    *(Attack(f"link-{name}", link(name), RESUME, 2, "link") for name in FILES),
    *(Attack(f"link-{name}", link(name, "folder"), RESUME, 2, "link") for name in (*FOLDERS, *CHECKPOINT_PATHS)),
    Attack("eval-link-config", link("config.yaml"), EVAL, 2, "link"),
    Attack("eval-link-best", link("best", "folder"), EVAL, 2, "link"),
    Attack("play-link-checkpoints", link("checkpoints", "folder"), PLAY, 2, "link"),
    Attack("compare-link-metrics", link("metrics.jsonl"), COMPARE, 2, "link"),
    *(
        Attack(f"train-link-{n}", in_empty_directory(link(n)), TRAIN, 2, "link")
        for n in (".lock", "config.tmp", "metrics.jsonl")
    ),
    *(
        Attack(f"hard-link-{n}", hard_link(n), RESUME, 2, "hard link")
        for n in (".lock", "metrics.jsonl", "progress.csv")
    ),
    *(
        Attack(f"deep-{name}", nested_directories(name), RESUME, 2, "nested more than")
        for name in ("checkpoints/.saving-1", "checkpoints/ckpt-000000000000/x", "best", "faults")
    ),
    Attack("pipe-config", named_pipe("config.yaml"), EVAL, 2, "config.yaml"),
    Attack("pipe-lock", named_pipe(".lock"), RESUME, 2, "regular file"),
    Attack("pipe-train-lock", in_empty_directory(named_pipe(".lock")), TRAIN, 2, "regular file"),
    Attack("pipe-metrics", named_pipe("metrics.jsonl"), RESUME, 2, "regular file"),
    Attack("pipe-progress", named_pipe("progress.csv"), RESUME, 2, "regular file"),
    Attack("pipe-summary", named_pipe("summary.json"), RESUME, 0, ""),
    *(Attack(f"pipe-{name}", named_pipe(name), RESUME, 0, "") for name in ("checkpoints/.saving-1", "best/.saving-1")),
    *(
        Attack(f"pipe-{name}", named_pipe(name), RESUME, 0, "")
        for name in ("config.tmp", "summary.tmp", "checkpoints/ckpt-9")
    ),
    Attack("pipe-compared-metrics", named_pipe("metrics.jsonl"), COMPARE, 2, "regular file"),
    Attack("pipe-compared-summary", named_pipe("summary.json"), COMPARE, 0, ""),
    *(
        Attack(f"{verb[0]}-pipe-{name}", named_pipe(f"*/ckpt-*/{name}"), verb, 1, "regular file")
        for name in ("manifest.json", "state.json", "policy.safetensors")
        for verb in (RESUME, EVAL)
    ),
    Attack("device-policy", endless_device("*/ckpt-*/policy.safetensors"), EVAL, 1, "regular file"),
    Attack("device-metrics", endless_device("metrics.jsonl"), RESUME, 2, "regular file"),
    Attack("sparse-config", sparse_file("config.yaml"), EVAL, 2, "bytes"),
    Attack("sparse-metrics", sparse_file("metrics.jsonl"), RESUME, 2, "metrics.jsonl"),
    Attack("sparse-progress", sparse_file("progress.csv"), RESUME, 2, "progress.csv"),
    Attack("sparse-compared-metrics", sparse_file("metrics.jsonl"), COMPARE, 2, "bytes"),
    Attack("sparse-compared-summary", sparse_file("summary.json"), COMPARE, 0, ""),
    *(
        Attack(f"sparse-{name}", sparse_file(f"*/ckpt-*/{name}"), verb, 1, "bytes")
        for name in ("manifest.json", "state.json", "policy.safetensors", "optimizer.safetensors")
        for verb in (RESUME, EVAL)
    ),
    *(
        Attack(f"{verb[0]}-yaml-{name}", change_config(env_kwargs=text), verb, 2, message)
        for verb in (RESUME, EVAL)
        for name, text, message in (
            ("aliases", ALIAS_BOMB, "aliases"),
            ("merges", MERGE_BOMB, "aliases"),
            ("circle", "&a {b: *a}", "itself"),
        )
    ),
    *(
        Attack(
            f"{verb[0]}-policy-{name}",
            all_of(malicious_modules("envpool.py", "evil.py"), change_config(policy=spec, **NO_NETWORK)),
            verb,
            2,
            "repeat it",
        )
        for verb in (RESUME, EVAL, PLAY)
        for name, spec in (("envpool", "envpool:make"), ("module", "evil:make"), ("file", "evil.py:make"))
    ),
    *(
        Attack(
            f"{verb[0]}-env-{name}", all_of(malicious_modules("evil.py"), change_config(env=spec)), verb, 2, "repeat it"
        )
        for verb in (RESUME, EVAL)
        for name, spec in (("module", "evil:make"), ("file", "evil.py:make"), ("id", "evil:Id-v0"))
    ),
    *(
        Attack(f"{verb[0]}-{name}-{what}", change_config(**{name: f'"evil:{text}"', **NO_NETWORK}), verb, 2, "control")
        for verb in (RESUME, EVAL, PLAY)
        for name in ("env", "policy")
        for what, text in (("escape", "\\e[31mred"), ("line", "a\\nb"), ("direction", "\\u202Eb"))
    ),
    Attack("compare-blank-lines", append_to("metrics.jsonl", b"\n" * (20 << 20)), COMPARE, 0, ""),
    Attack("compare-no-lines", append_to("metrics.jsonl", b"x\n" * (4 << 20)), COMPARE, 0, "and 4,194,303 more"),
    Attack("compare-escape", change_summary(exit_reason="\x1b[31mred\nsecond line"), COMPARE, 0, ""),
    Attack(
        "env-python",
        all_of(malicious_modules("evil.py"), change_config(env="python:evil.make")),
        RESUME,
        2,
        "only Python can give",
    ),
    *(
        Attack(
            f"{verb[0]}-shadowed-{env}",
            all_of(malicious_modules(shadow), change_config(env=env, learner="auto", net_arch="null")),
            verb,
            code,
            message,
        )
        for env, shadow in (
            ("game-boy", "pyboy.py"),
            ("envpool:CartPole-v1", "envpool.py"),
            ("ALE/Pong-v5", "ale_py.py"),
            ("card-battle", "numba.py"),
        )
        for verb, code, message in (
            (EVAL, 0 if env.startswith("envpool") else 2, "" if env.startswith("envpool") else "trained on"),
            (RESUME, 0 if env.startswith("envpool") else 1, "" if env.startswith("envpool") else "spaces"),
        )
    ),
    *(
        Attack(f"resume-{learner}-{file}-as-it-was", change_tensors(file, dict), RESUME, 0, "", learner)
        for learner in ("numpy", "torch")
        for file in ("policy", "optimizer", "envs")
    ),
    *(
        Attack(f"resume-{learner}-optimizer-{name}", change_tensors("optimizer", forge), RESUME, 1, message, learner)
        for learner in ("numpy", "torch")
        for name, message, forge in (
            ("larger", "exp_avg.", change_arrays("exp_avg.", lambda a: np.zeros((*a.shape, 3), a.dtype))),
            ("smaller", "exp_avg_sq.", change_arrays("exp_avg_sq.", lambda a: a.reshape(-1)[:1])),
            ("scalar", "exp_avg.", change_arrays("exp_avg.", lambda a: np.zeros((), a.dtype))),
            ("double", "float64", change_arrays("exp_avg", lambda a: a.astype(np.float64))),
            ("whole", "int32", change_arrays("exp_avg", lambda a: a.astype(np.int32))),
            ("half", "exp_avg_sq.", without_arrays("exp_avg_sq.")),
            ("steps", "step.", change_arrays("step.", lambda a: np.full((), np.inf, np.float32))),
            ("vector-steps", "step.", change_arrays("step.", lambda a: np.zeros(3, np.float32))),
            ("nan", "exp_avg.", change_arrays("exp_avg.", lambda a: np.full_like(a, np.nan))),
            ("negative", "exp_avg_sq.", change_arrays("exp_avg_sq.", lambda a: np.full_like(a, -1))),
            ("strangers", "other", lambda arrays: {**arrays, "exp_avg.other": np.zeros(3, np.float32)}),
        )
    ),
    *(
        Attack(f"{verb[0]}-policy-{name}", change_tensors("policy", forge), verb, 1, message)
        for verb in (RESUME, EVAL)
        for name, message, forge in (
            (
                "larger",
                "network.pi.2.weight",
                change_arrays("network.pi.2.weight", lambda a: np.zeros((65, 64), np.float32)),
            ),
            ("double", "float64", change_arrays("network", lambda a: a.astype(np.float64))),
            ("nan", "network.pi.0.bias", change_arrays("network.pi.0.bias", lambda a: np.full_like(a, np.nan))),
            ("missing", "network.vf", without_arrays("network.vf")),
            ("strangers", "other", lambda arrays: {**arrays, "other": np.zeros(3, np.float32)}),
        )
    ),
    *(
        Attack(f"envs-{name}", change_tensors("envs", forge), RESUME, 1, message)
        for name, message, forge in (
            ("more", "3 envs", change_arrays("episode", lambda a: np.zeros(3, np.int64))),
            ("scalar", "envs", change_arrays("episode", lambda a: np.array(3))),
            ("square", "episode", change_arrays("episode", lambda a: a[None])),
            ("floats", "length", change_arrays("length", lambda a: a.astype(np.float64))),
            ("negative", "negative", change_arrays("episode", lambda a: a - 10**6)),
            ("many-episodes", "2**53", change_arrays("episode", lambda a: np.full_like(a, 2**63 - 1))),
            ("endless", "2**53", without_actions(change_arrays("length", lambda a: np.full_like(a, 2**63 - 1)))),
            ("infinite", "reward", change_arrays("reward", lambda a: a + np.inf)),
            ("opponent", "opponent", change_arrays("opponent", lambda a: a + 1000)),
            ("long", "actions", change_arrays("length", lambda a: a + 7)),
            ("action", "action", change_arrays("actions/0", lambda a: a + 1000)),
            ("action-shape", "actions", change_arrays("actions/0", lambda a: np.zeros((len(a), 2), a.dtype))),
            ("action-dtype", "actions", change_arrays("actions/0", lambda a: a.astype(np.float32))),
            ("observation", "observation", change_arrays("observation/", lambda a: np.zeros((2, 5), a.dtype))),
            ("masks", "masks", lambda arrays: {**arrays, "masks": np.ones((2, 2), np.bool_)}),
            ("memory", "memory", lambda arrays: {**arrays, "memory": np.ones((2, 2), np.float32)}),
            ("strangers", "other", lambda arrays: {**arrays, "other": np.zeros(3, np.float32)}),
            ("missing", "0 envs", without_arrays("episode")),
        )
    ),
    *(
        Attack(f"{verb[0]}-wide-{name}", change_config(**changes), verb, 1, "fit")
        for verb in (RESUME, EVAL)
        for name, changes in (
            ("layers", {"net_arch": "{pi: [16000, 16000], vf: [16000, 16000]}"}),
            ("memory", {"recurrent": "lstm", "recurrent_size": "16000", "learner": "auto", "learner_shares": "null"}),
        )
    ),
    Attack("many-envs", change_config(n_envs="65536", batch_size="64"), RESUME, 1, "fit"),
    *(
        Attack(f"state-{path.replace('/', '-')}-{value[:12]}", set_state_value(path, value), RESUME, 1, "state.json")
        for path, values in {
            "timesteps": ('"many"', "-64", "true", "1e30", "1" + "0" * 50, "[]", "null", "64.5"),
            "iteration": ("null", "-1", "NaN", "Infinity", "1" + "0" * 5000),
            "episodes": ('"1"', "{}"),
            "seconds": ('"a"', "-1", "NaN", "1e999"),
            "recent": (
                "7",
                "[[1]]",
                '[["a", 1]]',
                "[[1, 2, 3]]",
                "[[1, -2]]",
                DEEPLY_NESTED,
                "[" + "[1, 2]," * 1000 + "[1, 2]]",
            ),
            "best_reward": ('"a"', "[]"),
            "mishaps": ("7", '{"restarts": -1}', '{"restarts": "a"}', '{"others": 1}'),
            "seed": ("-1", '"a"', "null", "1.5", "1" + "0" * 40),
            "n_updates": ('"a"', "-3", "1e300"),
            "parts": ("7", "[]"),
            "spaces": ("7", "{}", '{"observation": 3, "action": 4}'),
            "masked": ('"yes"', "7"),
        }.items()
        for value in values
    ),
    *(
        Attack(f"state-without-{name}", without_state_key(name), RESUME, 1, "state.json")
        for name in ("seed", "spaces", "recent")
    ),
    *(
        Attack(f"eval-space-{i}", set_state_value("spaces/observation", value), EVAL, 1, "")
        for i, value in enumerate(
            (
                '{"type": "Box"}',
                '{"type": "Box", "shape": [100000, 10000000], "dtype": "<f4", "low": 0, "high": 1}',
                '{"type": "Box", "shape": [4], "dtype": "<U1000000000", "low": 0, "high": 1}',
                '{"type": "MultiBinary", "n": 1000000000000}',
                '{"type": "MultiBinary", "n": [1000000, 1000000]}',
                f'{{"type": "Tuple", "spaces": [{", ".join([LARGE_SPACE] * 200)}]}}',
                '{"type": "Box", "shape": [-4], "dtype": "<f4", "low": 0, "high": 1}',
                '{"type": "Box", "shape": [4], "dtype": "O", "low": 0, "high": 1}',
                '{"type": "Box", "shape": [4], "dtype": "<f4", "low": [1, 2], "high": 1}',
                '{"type": "Box", "shape": [4], "dtype": "<f4,<f4", "low": 0, "high": 1}',
                '{"type": "Discrete", "n": 1000000000000, "start": 0, "dtype": "<i8"}',
                '{"type": "Discrete", "n": -1, "start": 0, "dtype": "<i8"}',
                '{"type": "Dict", "spaces": [["a"]]}',
                '{"type": "Tuple", "spaces": []}',
                '{"type": "MultiBinary", "n": "many"}',
                "[]",
            )
        )
    ),
    Attack("eval-masked", set_state_value("masked", '"yes"'), EVAL, 1, "state.json"),
    Attack("eval-timesteps", set_state_value("timesteps", "1e400"), EVAL, 1, ""),
]


# ---- tests --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory):
    """Return small finished runs, by learner."""
    directory = tmp_path_factory.mktemp("finished")
    return {
        learner: corral.train(
            "CartPole-v1", **SMALL, learner=learner, output_dir=str(directory / learner), quiet=True
        ).run_dir
        for learner in ("numpy", "torch")
    }


def contents_of(directory, excluding):
    """Return type and content of every file below a directory, except for one directory below it."""
    contents = {}
    for parent, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if Path(parent, name) != excluding]
        for path in [Path(parent, name) for name in [*folders, *files]]:
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else path.is_symlink() and path.readlink()
            contents[str(path)] = stat.S_IFMT(status.st_mode), content
    return contents


def prepare(finished_runs, directory, learner):
    """Copy a finished run and another run, and make files outside that must not change; return the run."""
    for name, source in (("run", learner), ("other", "numpy")):
        shutil.copytree(finished_runs[source], directory / name)
    outside = directory / "outside"
    (outside / "folder" / "ckpt-000000000001").mkdir(parents=True)
    for file in (
        outside / "victim.txt",
        outside / "folder" / "keep.txt",
        outside / "folder" / "ckpt-000000000001" / "a",
    ):
        file.write_text("keep me\n")
    return directory / "run"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_hostile_run_directory_does_no_harm(tmp_path, finished_runs, forked_commands, attack):
    if "device" in attack.name and os.geteuid() != 0:
        pytest.skip("only root can make devices")
    directory, logs = tmp_path / "directory", tmp_path / "logs"
    logs.mkdir()
    run = prepare(finished_runs, directory, attack.learner)
    attack.change(run)
    before = contents_of(directory, excluding=run)
    ended = forked_commands.run(attack.command, directory, logs)
    assert not ended.timed_out and ended.code == attack.code, ended
    assert "Traceback" not in ended.err and attack.message in ended.err, ended
    problems = [line for line in ended.err.splitlines() if line.startswith("corral ")]
    assert len(problems) == (ended.code != 0) and len(ended.err) < 3000, ended
    assert "\x1b" not in ended.out + ended.err, ended
    after = {
        path: content for path, content in contents_of(directory, excluding=run).items() if "comparison" not in path
    }
    assert after == before, ended


@pytest.mark.parametrize(
    "name", ["sweep.tmp", "sweep.yaml", "journal.log", "results.csv", "trials", "trials/A", "trials/A/.lock"]
)
def test_links_in_the_directory_of_a_sweep_are_refused(tmp_path, forked_commands, name):
    sweep, outside = tmp_path / "sweep", tmp_path / "outside"
    for folder in (sweep / "trials" / "A", outside):
        folder.mkdir(parents=True)
    for file in (sweep / "sweep.yaml", outside / "victim.txt"):
        file.write_text("env: CartPole-v1\n")
    link(name, "victim.txt" if "." in name else "folder")(sweep)
    before = contents_of(outside, excluding=None)
    ended = forked_commands.run(("resume", "sweep"), tmp_path, tmp_path)
    assert (
        ended.code == 2 and f"contains a link, {name}" in ended.err and contents_of(outside, excluding=None) == before
    ), ended


def test_a_summary_has_no_nan_or_infinity(tmp_path, finished_runs, forked_commands):
    run = prepare(finished_runs, tmp_path / "directory", "numpy")
    set_state_value("recent", str([[1.7e308, 10]] * 100))(run)
    ended = forked_commands.run(("resume", "run"), tmp_path / "directory", tmp_path)
    values = json.loads((run / "summary.json").read_text(), parse_constant=pytest.fail)
    assert ended.code == 0 and values["mean_reward"] is None and values["steps"] == 128, ended


def test_a_run_directory_can_be_reached_through_a_link(tmp_path, finished_runs, forked_commands):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    shutil.copytree(finished_runs["numpy"], tmp_path / "disk" / "run")
    (tmp_path / "here").symlink_to("disk/run")
    for command in (("resume", "here", "--timesteps", "192"), ("eval", "runs/run", "--episodes", "1")):
        assert forked_commands.run(command, tmp_path, tmp_path).code == 0
    trained = forked_commands.run((*TRAIN[:-1], "runs/new"), tmp_path, tmp_path)
    assert trained.code == 0 and (tmp_path / "disk" / "new" / "config.yaml").exists()
