"""Two thousand random mutations of run and sweep directories cause no traceback, crash, hang or change outside.

Each mutation depends only on its number, so ``try_mutation`` with the number in a failure repeats it.
"""

import contextlib
import json
import os
import random
import shutil
import socket
import zlib

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import corral
from corral.sweeps.api import sweep as run_sweep
from corral_games.territory.env import _HEADER
from tests.faults.test_hostile_runs import SMALL, checkpoints, contents_of, contiguous, update_manifest

MUTATIONS, PARTS = 2000, 20
SECONDS = 120.0
RUNS = {
    "numpy": ("CartPole-v1", {"learner": "numpy"}),
    "torch": ("CartPole-v1", {"learner": "torch"}),
    "scaled": ("Pendulum-v1", {"normalize_obs": True, "normalize_reward": True, "overlap": True, "kl_ref_coef": 0.1}),
    "memory": ("toy-recall", {"recurrent_size": 8, "n_steps": 32, "sequence_length": 16}),
    "league": (
        "card-battle",
        {"opponent": "mixed:random=1,checkpoint=1", "snapshot_freq": 64, "pool_size": 2, "net_arch": [8], "seed": 2},
    ),
    "stages": (
        "card-battle",
        {
            "stages": [
                {"name": "one", "opponent": "random", "timesteps": 64},
                {"name": "two", "opponent": "mixed:greedy=1,current=1"},
            ],
            "net_arch": [8],
        },
    ),
    "states": (
        "territory",
        {"env_kwargs": {"size": 32, "num_bots": 2, "max_steps": 1000}, "net_arch": [8], "cnn_features": 8},
    ),
}
RESUME = ("resume", "run", "--timesteps", "192", "--eval-games", "0")
COMMANDS = (
    *[RESUME] * 5,
    *[("eval", "run", "--episodes", "1", "--max-steps", "20")] * 3,
    ("eval", "run", "--episodes", "1", "--max-steps", "20", "--checkpoint", "latest"),
    ("compare", "run", "other", "--output", "comparison"),
    ("train", "CartPole-v1", "--output-dir", "run", "--timesteps", "64"),
)
YAML_VALUES = (
    *("null", "true", "-1", "0", "1", "2", "3.7", "-0.0", "1e999", ".nan", "-.inf", "18446744073709551616", "-9e99"),
    *(
        "''",
        "x",
        "'\\0'",
        '"\\x1b[31mred"',
        '"a\\nb"',
        "../../..",
        "/etc/passwd",
        "~",
        "cuda:99",
        "mps",
        "auto",
        "none",
    ),
    *("[]", "{}", "[1, 2, 3]", "{a: 1}", "[[[[1]]]]", "{pi: [1], vf: []}", "[x]", "{name: x}", "&a [*a]", "*missing"),
    *(
        "!!int x",
        "!!python/name:os.system",
        "!!binary aGk=",
        "!!set {a, b}",
        "2024-02-30",
        "0x_",
        "1:30",
        "? x",
        "- - -",
    ),
    *("9" * 5000, "'" + "x" * 20_000 + "'", "[" * 300, "os:system", "evil:make", "evil.py:make", "evil:Id-v0"),
    *(
        "envpool:make",
        "envpool:Pong-v5",
        "ALE/Pong-v5",
        "game-boy",
        "toy-maze",
        "CartPole-v0",
        "Pendulum-v1",
        "python:x",
    ),
    *("mixed:random=1,current=1", "checkpoint", "current", "mcts-fast", "run", "other", "outside"),
)
JSON_VALUES = (
    *(None, True, False, -1, 0, 1, 2, 7, 10**6, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.5, 1e300, 1e-300),
    *("", "x", "\x00", "\x1b[31m", "../x", "Box", "Dict", "Discrete", "<f4", "O", "inf", "nan", "9" * 400, "é" * 100),
    *([], {}, [1], [[1]], [1, 2], {"a": 1}, {"type": "Dict", "spaces": []}, [None], [0.0] * 300, {"": {"": {"": 0}}}),
)
RAW_JSON = (
    "NaN",
    "Infinity",
    "1e999",
    "-1e999",
    "1" * 5000,
    "[" * 2000 + "]" * 2000,
    '{"a": 1, "a": 2}',
    "tru",
    "",
    '"\\ud800"',
)
SCALARS = (np.nan, np.inf, -np.inf, -1, 0, 1, 255, 2**31, 2**62, -(2**63), 1e30)
DTYPES = ("f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8", "?")


def value_paths(data, path=()):
    """Yield the path of every value in JSON data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from value_paths(value, (*path, key))


def forge_json(rng, data):
    """Return JSON text with one value replaced, removed or copied."""
    path = rng.choice([value_path for value_path in value_paths(data) if value_path] or [()])
    if not path:
        return json.dumps(rng.choice(JSON_VALUES))
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    chance = rng.random()
    if chance < 0.15:
        del parent[path[-1]]
    elif chance < 0.2 and isinstance(parent, dict):
        parent[rng.choice(["extra", "", "a/b"])] = parent[path[-1]]
    elif chance < 0.35:
        parent[path[-1]] = "FORGED"
        return json.dumps(data).replace('"FORGED"', rng.choice(RAW_JSON))
    else:
        parent[path[-1]] = rng.choice(JSON_VALUES)
    return json.dumps(data)


def is_sweep(run):
    """Return whether the directory is that of a sweep."""
    return (run / "journal.log").exists()


def mutate_config(rng, run):
    """Change a line of the config; return a description, as all mutators do."""
    file = run / ("sweep.yaml" if is_sweep(run) else "config.yaml")
    lines = file.read_text().splitlines()
    index = rng.randrange(len(lines))
    key = lines[index].partition(":")[0]
    chance = rng.random()
    if chance < 0.75:
        lines[index] = f"{key}: {rng.choice(YAML_VALUES)}"
    elif chance < 0.85:
        del lines[index]
    elif chance < 0.9:
        lines.insert(
            index,
            rng.choice(["training:", "  - x", "\t", "%YAML 9", "---", "...", f"unknown: {rng.choice(YAML_VALUES)}"]),
        )
    else:
        flip_bits(rng, file)
        return f"config, bytes near {key}"
    file.write_text("\n".join(lines) + "\n")
    return f"config {lines[min(index, len(lines) - 1)][:80]!r}"


def mutate_state(rng, run):
    """Change a value of ``state.json`` in every checkpoint."""
    seed = rng.getrandbits(32)
    for checkpoint in checkpoints(run):
        text = forge_json(random.Random(seed), json.loads((checkpoint / "state.json").read_text()))
        (checkpoint / "state.json").write_text(text)
        update_manifest(checkpoint)
    return "state.json"


def mutate_manifest(rng, run):
    """Change a value of ``manifest.json`` in every checkpoint."""
    seed = rng.getrandbits(32)
    for checkpoint in checkpoints(run):
        file = checkpoint / "manifest.json"
        file.write_text(forge_json(random.Random(seed), json.loads(file.read_text())))
    return "manifest.json"


def mutate_tensors(rng, run):
    """Change the bytes, the length or the arrays of a file of tensors in every checkpoint."""
    paths = checkpoints(run)
    name = rng.choice(sorted(file.name for file in paths[-1].glob("*.safetensors")))
    seed, chance = rng.getrandbits(32), rng.random()
    for checkpoint in paths:
        file = checkpoint / name
        if not file.exists():
            continue
        if chance < 0.15:
            flip_bits(random.Random(seed), file)
        elif chance < 0.25:
            os.truncate(file, random.Random(seed).randrange(file.stat().st_size))
        else:
            arrays = load_file(file)
            if not arrays:
                continue
            save_file(forge_arrays(random.Random(seed), arrays), file)
        update_manifest(checkpoint)
    return f"{name}, {seed}, {chance:.2f}"


def mutate_env_states(rng, run):
    """Change bytes inside the compressed states of territory envs."""
    for checkpoint in checkpoints(run):
        file = checkpoint / "envs.safetensors"
        arrays = load_file(file)
        for name in [name for name in arrays if name.startswith("state/")]:
            state = arrays[name].tobytes()
            head = _HEADER.size + _HEADER.unpack_from(state)[1]
            packed = bytearray(zlib.decompress(state[head:]))
            for _ in range(rng.choice([0, 1, 5, 50])):
                packed[rng.randrange(len(packed))] = rng.randrange(256)
            packed += bytes(rng.choice([0, 0, 0, 1 << 28]))
            arrays[name] = np.frombuffer(state[:head] + zlib.compress(packed, 1), np.uint8)
        save_file(arrays, file)
        update_manifest(checkpoint)
    return "states of envs"


def forge_arrays(rng, arrays):
    """Change shape, dtype, values or name of one array."""
    name = rng.choice(sorted(arrays))
    array, change = arrays[name], rng.choice(["shape", "dtype", "value", "one", "drop", "rename", "add", "size"])
    if change == "shape":
        arrays[name] = array.reshape(-1)[None] if array.size else np.zeros((0, 3), array.dtype)
    elif change == "size":
        arrays[name] = np.resize(array, [rng.randrange(6) for _ in range(rng.randrange(4))]).astype(array.dtype)
    elif change == "dtype":
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(rng.choice(DTYPES))
    elif change in ("value", "one"):
        value = rng.choice(SCALARS)
        with np.errstate(all="ignore"):
            forged = np.full_like(array, np.asarray(value).astype(array.dtype))
        if change == "one" and array.size:
            flat = array.reshape(-1).copy()
            flat[rng.randrange(flat.size)] = forged.reshape(-1)[0]
            forged = flat.reshape(array.shape)
        arrays[name] = forged
    else:
        if change != "add":
            del arrays[name]
        if change != "drop":
            arrays[rng.choice(["x", "0/x", "guest/x/y", "state/0", "actions/9", "../x", "a" * 1000])] = array
    return contiguous(arrays)


def mutate_files(rng, run):
    """Replace a file or directory by a link, a pipe, a socket or the like."""
    paths = sorted(path for path in run.rglob("*"))
    new_paths = [
        run / name for name in ("config.tmp", "summary.tmp", "checkpoints/.saving-1", "checkpoints/ckpt-000000000999")
    ]
    path = rng.choice([*paths, *new_paths])
    kind = rng.choice(["link", "folder", "pipe", "socket", "empty", "sparse", "hard", "missing", "self", "copy"])
    outside = run.parent / "outside"
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(
            rng.choice([outside / "victim.txt", outside / "folder", outside / "nothing", "/dev/zero", "/etc"])
        )
    elif kind == "self":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
        (path / "x").write_text("x")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)  # a socket needs a short path
    elif kind == "empty":
        path.touch()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << rng.choice([24, 36, 42]))
    elif kind == "hard":
        os.link(outside / "victim.txt", path)
    elif kind == "copy":
        shutil.copy(rng.choice([other for other in run.parent.joinpath("other").rglob("*") if other.is_file()]), path)
    return f"{kind} {path.relative_to(run)}"


def mutate_text(rng, run):
    """Change a line or some bits of a text file."""
    names = ["metrics.jsonl", "progress.csv", "summary.json", ".lock"]
    if is_sweep(run):
        names = [*["journal.log"] * 3, "results.csv", ".lock", "trials/0/summary.json", "trials/1/metrics.jsonl"]
    file = run / rng.choice(names)
    lines = file.read_bytes().splitlines() or [b""]
    change, index = rng.choice(["flip", "line", "long", "forge", "drop"]), rng.randrange(len(lines))
    if change == "flip":
        flip_bits(rng, file)
        return f"{file.name} flipped"
    if change == "line":
        lines[index] = rng.choice(
            [b"", b"{", b"[]", b"null", b"\xff\x00", b",,,,", b'"', b'{"time/total_timesteps": NaN}']
        )
    elif change == "long":
        lines[index] += b"x" * 3_000_000
    elif change == "drop":
        del lines[index]
    elif file.suffix in (".json", ".jsonl", ".log"):
        data = json.loads(b"\n".join(lines) if file.suffix == ".json" else lines[index])
        lines = [b""] if file.suffix == ".json" else lines
        lines[index % len(lines)] = forge_json(rng, data).encode()
    file.write_bytes(b"\n".join(lines) + b"\n" * rng.randrange(3))
    return f"{file.name} {change} {index}"


def flip_bits(rng, file):
    """Flip some bits of a file."""
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 20]) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


MUTATORS = (
    *[mutate_config] * 4,
    *[mutate_state] * 4,
    mutate_manifest,
    *[mutate_tensors] * 4,
    *[mutate_files] * 4,
    *[mutate_text] * 2,
)
SWEEP_MUTATORS = (*[mutate_config] * 3, *[mutate_text] * 4, *[mutate_files] * 2)
STATE_MUTATORS = (*[mutate_env_states] * 3, *MUTATORS)


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory):
    """Return the directories of small finished runs and of a sweep, by name."""
    directory = tmp_path_factory.mktemp("finished")
    runs = {
        name: corral.train(env, **{**SMALL, **settings, "output_dir": str(directory / name), "quiet": True}).run_dir
        for name, (env, settings) in RUNS.items()
    }
    settings = {**SMALL, "eval_freq": 0, "output_dir": str(directory / "sweep"), "quiet": True}
    sweep_result = run_sweep("CartPole-v1", search={"learning_rate": "log:1e-4:1e-3"}, trials=2, **settings)
    return {**runs, "sweep": sweep_result.sweep_dir}


def try_mutation(number, finished_runs, forked_commands, tmp_path):
    """Return what went wrong with a mutation, or None, and the result of its command."""
    rng = random.Random(number)
    directory = tmp_path / str(number)
    outside = directory / "outside"
    name_of_run = rng.choice(sorted(finished_runs))
    mutators = {"sweep": SWEEP_MUTATORS, "states": STATE_MUTATORS}.get(name_of_run, MUTATORS)
    shutil.copytree(finished_runs[name_of_run], directory / "run")
    shutil.copytree(finished_runs["numpy"], directory / "other")
    (outside / "folder" / "ckpt-000000000001").mkdir(parents=True)
    for file in (outside / "victim.txt", outside / "folder" / "keep.txt"):
        file.write_text("keep me\n")
    code = f"open({str(outside / 'executed')!r}, 'w').close()\n"
    for name in ("evil.py", "envpool.py", "pyboy.py", "ale_py.py", "numba.py"):
        (directory / name).write_text(code)
    mutations = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        with contextlib.suppress(
            OSError, LookupError, ValueError, MemoryError, RecursionError, SafetensorError
        ):  # the first mutation may have removed what the second needs
            mutations.append(rng.choice(mutators)(rng, directory / "run"))
    before = contents_of(directory, excluding=directory / "run")
    command = ("resume", "run") if name_of_run == "sweep" else rng.choice(COMMANDS)
    ended = forked_commands.run(command, directory, tmp_path, SECONDS)
    after = {
        path: content
        for path, content in contents_of(directory, excluding=directory / "run").items()
        if "comparison" not in path
    }
    messages = ended.err.partition("The env's own traceback:")[0]
    # A mutated config may make training take very long.
    started_training = "resuming" in ended.out or "sweeping" in ended.out
    is_long_training = (
        ended.timed_out and started_training and any(mutation.startswith("config") for mutation in mutations)
    )
    problem = None
    if ended.timed_out and not is_long_training:
        problem = "it hung"
    elif not is_long_training and ended.code not in (0, 1, 2, 3):
        problem = "it crashed"
    elif "Traceback" in messages:
        problem = "a traceback"
    elif ended.code and not is_long_training and sum(line.startswith("corral ") for line in messages.splitlines()) != 1:
        problem = "not one line that says why"
    elif after != before:
        problem = f"changed outside: {sorted(set(after) ^ set(before)) or 'contents'}"
    shutil.rmtree(directory)
    return problem and f"mutation {number}: {problem}; {'; '.join(mutations)}; {' '.join(command)}; {ended}", ended


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(3600)
def test_no_mutation_of_a_run_directory_does_harm(tmp_path, finished_runs, forked_commands, part):
    problems, codes = [], {}
    for number in range(part, MUTATIONS, PARTS):
        problem, ended = try_mutation(number, finished_runs, forked_commands, tmp_path)
        codes[ended.code] = codes.get(ended.code, 0) + 1
        problems += [problem] if problem else []
    print(f"exit codes: {codes}")
    assert not problems, f"{len(problems)} of {MUTATIONS // PARTS}:\n\n" + "\n\n".join(problems[:10])


def test_a_few_mutations_of_a_run_directory_do_no_harm(tmp_path, finished_runs, forked_commands):
    for number in range(MUTATIONS, MUTATIONS + 25):
        assert try_mutation(number, finished_runs, forked_commands, tmp_path)[0] is None
