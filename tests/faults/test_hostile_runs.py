"""Run directories that an enemy made: every attack ends in one line, in bounded time, and touches nothing outside.

Each row of the table changes a small finished run and names the command that opens it.
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
    """What is done to a run, and how the command that opens it must end."""

    name: str
    change: Callable[[Path], object]
    """Given the run directory; ``outside`` lies beside it, and commands run in the directory that holds both."""
    command: tuple[str, ...]
    code: int
    says: str
    """Part of the message."""
    made: str = "numpy"
    """Which of the finished runs it is done to."""


# ---- what can be done to a run ------------------------------------------------------------------------------------------


def checkpoints(run):
    return sorted([*run.glob("checkpoints/ckpt-*"), *run.glob("best/ckpt-*")])


def vouch(path):
    """Let the manifest of a checkpoint confirm what its files hold now, sizes too."""
    files = [file for file in path.iterdir() if file.name != "manifest.json" and file.is_file()]
    data = {file.name: file.read_bytes() for file in files}
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
    manifest["bytes"] = {name: len(content) for name, content in data.items()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def link(name, target="victim.txt"):
    """Replace something in the run by a link to something outside."""

    def change(run):
        path, outside = run / name, (run.parent / "outside" / target).absolute()
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, outside, dirs_exist_ok=True)
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(outside)

    return change


def deep(name, levels=25):
    return lambda run: (run / name).joinpath(*["d"] * levels).mkdir(parents=True)


def hard_link(name):
    def change(run):
        (run / name).unlink(missing_ok=True)
        os.link(run.parent / "outside" / "victim.txt", run / name)

    return change


def alone(change):
    """Do it to a directory that holds nothing else."""

    def emptied(run):
        shutil.rmtree(run)
        run.mkdir()
        change(run)

    return emptied


def pipe(name):
    return replaced(name, os.mkfifo)


def device(name):
    return replaced(name, lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)))  # /dev/zero


def sparse(name, size=1 << 40):
    def grow(path):
        path.touch()
        os.truncate(path, size)

    def change(run):
        for path in run.glob(name):
            grow(path)
            if path.parent in checkpoints(run):
                manifest = path.with_name("manifest.json")
                told = {**json.loads(manifest.read_text())} if path != manifest else None
                if told is not None and "bytes" in told:
                    told["bytes"][path.name] = size
                    manifest.write_text(json.dumps(told))

    return change


def replaced(name, make):
    def change(run):
        found = list(run.glob(name)) or [run / name]
        for path in found:
            path.unlink(missing_ok=True)
            make(path)

    return change


def settings(**changes):
    """Change lines of the config; a value may be any YAML."""

    def change(run):
        lines = (run / "config.yaml").read_text().splitlines()
        kept = [line for line in lines if line.partition(":")[0] not in changes]
        (run / "config.yaml").write_text("\n".join([*kept, *(f"{k}: {v}" for k, v in changes.items())]) + "\n")

    return change


def text(name, more):
    """Append to a file."""

    def change(run):
        with (run / name).open("ab") as file:
            file.write(more)

    return change


def summary(**changes):
    """Change values of ``summary.json``."""

    def change(run):
        told = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps({**told, **changes}))

    return change


def evil(*names):
    """Put modules into the current directory that leave a mark outside when they are imported."""

    def change(run):
        mark = (run.parent / "outside" / "executed").absolute()
        for name in names:
            (run.parent / name).write_text(
                f"open({str(mark)!r}, 'w').close()\ndef make(*args, **kwargs):\n    raise SystemExit('executed')\n"
            )

    return change


def both(*changes):
    return lambda run: [change(run) for change in changes]


def state(path, value):
    """Forge a value in every ``state.json``; ``value`` is JSON text."""

    def change(run):
        for checkpoint in checkpoints(run):
            told = json.loads((checkpoint / "state.json").read_text())
            place, *keys = told, *path.split("/")
            for key in keys[:-1]:
                place = place[key]
            place[keys[-1]] = "FORGED"
            (checkpoint / "state.json").write_text(json.dumps(told).replace('"FORGED"', value))
            vouch(checkpoint)

    return change


def without(path):
    def change(run):
        for checkpoint in checkpoints(run):
            told = json.loads((checkpoint / "state.json").read_text())
            del told[path]
            (checkpoint / "state.json").write_text(json.dumps(told))
            vouch(checkpoint)

    return change


def tensors(file, forge):
    """Change the arrays of a file in every checkpoint; ``forge`` gets them by name."""

    def change(run):
        for checkpoint in checkpoints(run):
            if checkpoint.name == "ckpt-000000000000":
                continue  # it has no moments yet, and is not the newest
            arrays = forge(load_file(checkpoint / f"{file}.safetensors"))
            save_file(in_order(arrays), checkpoint / f"{file}.safetensors")
            vouch(checkpoint)

    return change


def in_order(arrays):
    """Arrays whose numbers lie in order, as files hold them; ``np.ascontiguousarray`` would make (1,) of the shape ()."""
    return {name: array.copy(order="C") for name, array in arrays.items()}


def each(start, make):
    """Change every array whose name begins so."""

    def forge(arrays):
        chosen = [name for name in arrays if name.startswith(start)]
        assert chosen
        return {**arrays, **{name: make(arrays[name]) for name in chosen}}

    return forge


def dropped(start):
    return lambda arrays: {name: array for name, array in arrays.items() if not name.startswith(start)}


def without_actions(forge):
    return lambda arrays: forge(dropped("actions/")(arrays))


NO_NETWORK = {"net_arch": "null", "score_actions": "null", "learner": "torch", "learner_shares": "null"}
BOMB = (
    "{" + ", ".join(["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]) + "}"
)
MERGED = "\n" + "\n".join(
    ["  m0: &m0 {k: 1}", *(f"  m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}" for i in range(1, 12))]
)
A_GIANT = '{"type": "Box", "shape": [4000, 4000], "dtype": "<f4", "low": 0, "high": 1}'
DEEP = "[" * 900 + "]" * 900
FILES = (".lock", "config.yaml", "config.tmp", "metrics.jsonl", "metrics.tmp", "progress.csv", "progress.csv.tmp")
FILES = (*FILES, "summary.json", "summary.tmp", "matches.json", "faults/env-0-seed-1-step-1.json", "tensorboard/events")
FOLDERS = ("checkpoints", "best", "tensorboard", "faults", "phases", "checkpoints/.saving-1", "phases/one")
INSIDE = ("checkpoints/ckpt-000000000128", "checkpoints/ckpt-000000000128/policy.safetensors")
INSIDE = (*INSIDE, "checkpoints/ckpt-000000000128/manifest.json", "best/.saving-1")

ATTACKS = [
    *(Attack(f"link-{name}", link(name), RESUME, 2, "link") for name in FILES),
    *(Attack(f"link-{name}", link(name, "folder"), RESUME, 2, "link") for name in (*FOLDERS, *INSIDE)),
    Attack("eval-link-config", link("config.yaml"), EVAL, 2, "link"),
    Attack("eval-link-best", link("best", "folder"), EVAL, 2, "link"),
    Attack("play-link-checkpoints", link("checkpoints", "folder"), PLAY, 2, "link"),
    Attack("compare-link-metrics", link("metrics.jsonl"), COMPARE, 2, "link"),
    *(Attack(f"train-link-{n}", alone(link(n)), TRAIN, 2, "link") for n in (".lock", "config.tmp", "metrics.jsonl")),
    *(
        Attack(f"hard-link-{n}", hard_link(n), RESUME, 2, "hard link")
        for n in (".lock", "metrics.jsonl", "progress.csv")
    ),
    *(
        Attack(f"deep-{name}", deep(name), RESUME, 2, "nested more than")
        for name in ("checkpoints/.saving-1", "checkpoints/ckpt-000000000000/x", "best", "faults")
    ),
    Attack("pipe-config", pipe("config.yaml"), EVAL, 2, "config.yaml"),
    Attack("pipe-lock", pipe(".lock"), RESUME, 2, "regular file"),
    Attack("pipe-train-lock", alone(pipe(".lock")), TRAIN, 2, "regular file"),
    Attack("pipe-metrics", pipe("metrics.jsonl"), RESUME, 2, "regular file"),
    Attack("pipe-progress", pipe("progress.csv"), RESUME, 2, "regular file"),
    Attack("pipe-summary", pipe("summary.json"), RESUME, 0, ""),
    *(Attack(f"pipe-{name}", pipe(name), RESUME, 0, "") for name in ("checkpoints/.saving-1", "best/.saving-1")),
    *(
        Attack(f"pipe-{name}", pipe(name), RESUME, 0, "")
        for name in ("config.tmp", "summary.tmp", "checkpoints/ckpt-9")
    ),
    Attack("pipe-compared-metrics", pipe("metrics.jsonl"), COMPARE, 2, "regular file"),
    Attack("pipe-compared-summary", pipe("summary.json"), COMPARE, 0, ""),
    *(
        Attack(f"{verb[0]}-pipe-{name}", pipe(f"*/ckpt-*/{name}"), verb, 1, "regular file")
        for name in ("manifest.json", "state.json", "policy.safetensors")
        for verb in (RESUME, EVAL)
    ),
    Attack("device-policy", device("*/ckpt-*/policy.safetensors"), EVAL, 1, "regular file"),
    Attack("device-metrics", device("metrics.jsonl"), RESUME, 2, "regular file"),
    Attack("sparse-config", sparse("config.yaml"), EVAL, 2, "bytes"),
    Attack("sparse-metrics", sparse("metrics.jsonl"), RESUME, 2, "metrics.jsonl"),
    Attack("sparse-progress", sparse("progress.csv"), RESUME, 2, "progress.csv"),
    Attack("sparse-compared-metrics", sparse("metrics.jsonl"), COMPARE, 2, "bytes"),
    Attack("sparse-compared-summary", sparse("summary.json"), COMPARE, 0, ""),
    *(
        Attack(f"sparse-{name}", sparse(f"*/ckpt-*/{name}"), verb, 1, "bytes")
        for name in ("manifest.json", "state.json", "policy.safetensors", "optimizer.safetensors")
        for verb in (RESUME, EVAL)
    ),
    *(
        Attack(f"{verb[0]}-yaml-{name}", settings(env_kwargs=text), verb, 2, says)
        for verb in (RESUME, EVAL)
        for name, text, says in (
            ("aliases", BOMB, "aliases"),
            ("merges", MERGED, "aliases"),
            ("circle", "&a {b: *a}", "itself"),
        )
    ),
    *(
        Attack(
            f"{verb[0]}-policy-{name}",
            both(evil("envpool.py", "evil.py"), settings(policy=spec, **NO_NETWORK)),
            verb,
            2,
            "repeat it",
        )
        for verb in (RESUME, EVAL, PLAY)
        for name, spec in (("envpool", "envpool:make"), ("module", "evil:make"), ("file", "evil.py:make"))
    ),
    *(
        Attack(f"{verb[0]}-env-{name}", both(evil("evil.py"), settings(env=spec)), verb, 2, "repeat it")
        for verb in (RESUME, EVAL)
        for name, spec in (("module", "evil:make"), ("file", "evil.py:make"), ("id", "evil:Id-v0"))
    ),
    *(
        Attack(f"{verb[0]}-{name}-{what}", settings(**{name: f'"evil:{text}"', **NO_NETWORK}), verb, 2, "control")
        for verb in (RESUME, EVAL, PLAY)
        for name in ("env", "policy")
        for what, text in (("escape", "\\e[31mred"), ("line", "a\\nb"), ("direction", "\\u202Eb"))
    ),
    Attack("compare-blank-lines", text("metrics.jsonl", b"\n" * (20 << 20)), COMPARE, 0, ""),
    Attack("compare-no-lines", text("metrics.jsonl", b"x\n" * (4 << 20)), COMPARE, 0, "and 4,194,303 more"),
    Attack("compare-escape", summary(exit_reason="\x1b[31mred\nsecond line"), COMPARE, 0, ""),
    Attack("env-python", both(evil("evil.py"), settings(env="python:evil.make")), RESUME, 2, "only Python can give"),
    *(
        Attack(
            f"{verb[0]}-shadowed-{env}",
            both(evil(shadow), settings(env=env, learner="auto", net_arch="null")),
            verb,
            code,
            says,
        )
        for env, shadow in (
            ("game-boy", "pyboy.py"),
            ("envpool:CartPole-v1", "envpool.py"),
            ("ALE/Pong-v5", "ale_py.py"),
            ("card-battle", "numba.py"),
        )
        for verb, code, says in (
            (EVAL, 0 if env.startswith("envpool") else 2, "" if env.startswith("envpool") else "trained on"),
            (RESUME, 0 if env.startswith("envpool") else 1, "" if env.startswith("envpool") else "spaces"),
        )
    ),
    *(
        Attack(f"resume-{made}-{file}-as-it-was", tensors(file, dict), RESUME, 0, "", made)
        for made in ("numpy", "torch")
        for file in ("policy", "optimizer", "envs")
    ),
    *(
        Attack(f"resume-{made}-optimizer-{name}", tensors("optimizer", forge), RESUME, 1, says, made)
        for made in ("numpy", "torch")
        for name, says, forge in (
            ("larger", "exp_avg.", each("exp_avg.", lambda a: np.zeros((*a.shape, 3), a.dtype))),
            ("smaller", "exp_avg_sq.", each("exp_avg_sq.", lambda a: a.reshape(-1)[:1])),
            ("scalar", "exp_avg.", each("exp_avg.", lambda a: np.zeros((), a.dtype))),
            ("double", "float64", each("exp_avg", lambda a: a.astype(np.float64))),
            ("whole", "int32", each("exp_avg", lambda a: a.astype(np.int32))),
            ("half", "exp_avg_sq.", dropped("exp_avg_sq.")),
            ("steps", "step.", each("step.", lambda a: np.full((), np.inf, np.float32))),
            ("vector-steps", "step.", each("step.", lambda a: np.zeros(3, np.float32))),
            ("nan", "exp_avg.", each("exp_avg.", lambda a: np.full_like(a, np.nan))),
            ("negative", "exp_avg_sq.", each("exp_avg_sq.", lambda a: np.full_like(a, -1))),
            ("strangers", "other", lambda arrays: {**arrays, "exp_avg.other": np.zeros(3, np.float32)}),
        )
    ),
    *(
        Attack(f"{verb[0]}-policy-{name}", tensors("policy", forge), verb, 1, says)
        for verb in (RESUME, EVAL)
        for name, says, forge in (
            ("larger", "network.pi.2.weight", each("network.pi.2.weight", lambda a: np.zeros((65, 64), np.float32))),
            ("double", "float64", each("network", lambda a: a.astype(np.float64))),
            ("nan", "network.pi.0.bias", each("network.pi.0.bias", lambda a: np.full_like(a, np.nan))),
            ("missing", "network.vf", dropped("network.vf")),
            ("strangers", "other", lambda arrays: {**arrays, "other": np.zeros(3, np.float32)}),
        )
    ),
    *(
        Attack(f"envs-{name}", tensors("envs", forge), RESUME, 1, says)
        for name, says, forge in (
            ("more", "3 envs", each("episode", lambda a: np.zeros(3, np.int64))),
            ("scalar", "envs", each("episode", lambda a: np.array(3))),
            ("square", "episode", each("episode", lambda a: a[None])),
            ("floats", "length", each("length", lambda a: a.astype(np.float64))),
            ("negative", "negative", each("episode", lambda a: a - 10**6)),
            ("many-episodes", "2**53", each("episode", lambda a: np.full_like(a, 2**63 - 1))),
            ("endless", "2**53", without_actions(each("length", lambda a: np.full_like(a, 2**63 - 1)))),
            ("infinite", "reward", each("reward", lambda a: a + np.inf)),
            ("opponent", "opponent", each("opponent", lambda a: a + 1000)),
            ("long", "actions", each("length", lambda a: a + 7)),
            ("action", "action", each("actions/0", lambda a: a + 1000)),
            ("action-shape", "actions", each("actions/0", lambda a: np.zeros((len(a), 2), a.dtype))),
            ("action-dtype", "actions", each("actions/0", lambda a: a.astype(np.float32))),
            ("observation", "observation", each("observation/", lambda a: np.zeros((2, 5), a.dtype))),
            ("masks", "masks", lambda arrays: {**arrays, "masks": np.ones((2, 2), np.bool_)}),
            ("memory", "memory", lambda arrays: {**arrays, "memory": np.ones((2, 2), np.float32)}),
            ("strangers", "other", lambda arrays: {**arrays, "other": np.zeros(3, np.float32)}),
            ("missing", "0 envs", dropped("episode")),
        )
    ),
    *(
        Attack(f"{verb[0]}-wide-{name}", settings(**changes), verb, 1, "fit")
        for verb in (RESUME, EVAL)
        for name, changes in (
            ("layers", {"net_arch": "{pi: [16000, 16000], vf: [16000, 16000]}"}),
            ("memory", {"recurrent": "lstm", "recurrent_size": "16000", "learner": "auto", "learner_shares": "null"}),
        )
    ),
    Attack("many-envs", settings(n_envs="65536", batch_size="64"), RESUME, 1, "fit"),
    *(
        Attack(f"state-{path.replace('/', '-')}-{value[:12]}", state(path, value), RESUME, 1, "state.json")
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
                DEEP,
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
    *(Attack(f"state-without-{name}", without(name), RESUME, 1, "state.json") for name in ("seed", "spaces", "recent")),
    *(
        Attack(f"eval-space-{i}", state("spaces/observation", value), EVAL, 1, "")
        for i, value in enumerate(
            (
                '{"type": "Box"}',
                '{"type": "Box", "shape": [100000, 10000000], "dtype": "<f4", "low": 0, "high": 1}',
                '{"type": "Box", "shape": [4], "dtype": "<U1000000000", "low": 0, "high": 1}',
                '{"type": "MultiBinary", "n": 1000000000000}',
                '{"type": "MultiBinary", "n": [1000000, 1000000]}',
                f'{{"type": "Tuple", "spaces": [{", ".join([A_GIANT] * 200)}]}}',
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
    Attack("eval-masked", state("masked", '"yes"'), EVAL, 1, "state.json"),
    Attack("eval-timesteps", state("timesteps", "1e400"), EVAL, 1, ""),
]


# ---- how they are tried -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Small finished runs, by the engine that learned."""
    where = tmp_path_factory.mktemp("finished")
    return {
        engine: corral.train("CartPole-v1", **SMALL, learner=engine, output_dir=str(where / engine), quiet=True).run_dir
        for engine in ("numpy", "torch")
    }


def look_at(directory, leave):
    """Every file below a directory, as it is now, but for one part of it."""
    found = {}
    for here, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if Path(here, name) != leave]
        for path in [Path(here, name) for name in [*folders, *files]]:
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else path.is_symlink() and path.readlink()
            found[str(path)] = stat.S_IFMT(status.st_mode), content
    return found


def prepare(finished, place, made):
    """A copy of a finished run, another run, and things outside that must stay as they are."""
    for name, of in (("run", made), ("other", "numpy")):
        shutil.copytree(finished[of], place / name)
    outside = place / "outside"
    (outside / "folder" / "ckpt-000000000001").mkdir(parents=True)
    for file in (
        outside / "victim.txt",
        outside / "folder" / "keep.txt",
        outside / "folder" / "ckpt-000000000001" / "a",
    ):
        file.write_text("keep me\n")
    return place / "run"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_hostile_run_directory_does_no_harm(tmp_path, finished, warm, attack):
    if "device" in attack.name and os.geteuid() != 0:
        pytest.skip("only root can make devices")
    place, logs = tmp_path / "place", tmp_path / "logs"
    logs.mkdir()
    run = prepare(finished, place, attack.made)
    attack.change(run)
    before = look_at(place, leave=run)
    ended = warm.run(attack.command, place, logs)
    assert not ended.timed_out and ended.code == attack.code, ended
    assert "Traceback" not in ended.err and attack.says in ended.err, ended
    problems = [line for line in ended.err.splitlines() if line.startswith("corral ")]
    assert len(problems) == (ended.code != 0) and len(ended.err) < 3000, ended
    assert "\x1b" not in ended.out + ended.err, ended
    after = {path: seen for path, seen in look_at(place, leave=run).items() if "comparison" not in path}
    assert after == before, ended


@pytest.mark.parametrize(
    "name", ["sweep.tmp", "sweep.yaml", "journal.log", "results.csv", "trials", "trials/A", "trials/A/.lock"]
)
def test_links_in_the_directory_of_a_sweep_are_refused(tmp_path, warm, name):
    sweep, outside = tmp_path / "sweep", tmp_path / "outside"
    for folder in (sweep / "trials" / "A", outside):
        folder.mkdir(parents=True)
    for file in (sweep / "sweep.yaml", outside / "victim.txt"):
        file.write_text("env: CartPole-v1\n")
    link(name, "victim.txt" if "." in name else "folder")(sweep)
    before = look_at(outside, leave=None)
    ended = warm.run(("resume", "sweep"), tmp_path, tmp_path)
    assert ended.code == 2 and f"contains a link, {name}" in ended.err and look_at(outside, leave=None) == before, ended


def test_a_summary_has_no_numbers_that_json_lacks(tmp_path, finished, warm):
    run = prepare(finished, tmp_path / "place", "numpy")
    state("recent", str([[1.7e308, 10]] * 100))(run)
    ended = warm.run(("resume", "run"), tmp_path / "place", tmp_path)
    told = json.loads((run / "summary.json").read_text(), parse_constant=pytest.fail)
    assert ended.code == 0 and told["mean_reward"] is None and told["steps"] == 128, ended


def test_a_run_directory_that_is_reached_through_a_link_is_like_any_other(tmp_path, finished, warm):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    shutil.copytree(finished["numpy"], tmp_path / "disk" / "run")
    (tmp_path / "here").symlink_to("disk/run")
    for words in (("resume", "here", "--timesteps", "192"), ("eval", "runs/run", "--episodes", "1")):
        assert warm.run(words, tmp_path, tmp_path).code == 0
    fresh = warm.run((*TRAIN[:-1], "runs/new"), tmp_path, tmp_path)
    assert fresh.code == 0 and (tmp_path / "disk" / "new" / "config.yaml").exists()
