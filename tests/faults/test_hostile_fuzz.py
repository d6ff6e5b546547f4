"""Two thousand directories of runs and sweeps with something wrong in them: no traceback, no crash, no hang, nothing outside changed.

Every mutation follows from its number alone, so ``try_one`` with the number that a failure names repeats it.
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
from tests.faults.test_hostile_runs import SMALL, checkpoints, in_order, look_at, vouch

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
WORDS = (
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
VALUES = (
    *(None, True, False, -1, 0, 1, 2, 7, 10**6, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.5, 1e300, 1e-300),
    *("", "x", "\x00", "\x1b[31m", "../x", "Box", "Dict", "Discrete", "<f4", "O", "inf", "nan", "9" * 400, "é" * 100),
    *([], {}, [1], [[1]], [1, 2], {"a": 1}, {"type": "Dict", "spaces": []}, [None], [0.0] * 300, {"": {"": {"": 0}}}),
)
RAW = (
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


def places(data, here=()):
    """The path of every value in some JSON data."""
    yield here
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*here, key))


def forge_json(rng, data):
    """JSON text with one value replaced, removed or doubled."""
    path = rng.choice([place for place in places(data) if place] or [()])
    if not path:
        return json.dumps(rng.choice(VALUES))
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    way = rng.random()
    if way < 0.15:
        del holder[path[-1]]
    elif way < 0.2 and isinstance(holder, dict):
        holder[rng.choice(["extra", "", "a/b"])] = holder[path[-1]]
    elif way < 0.35:
        holder[path[-1]] = "FORGED"
        return json.dumps(data).replace('"FORGED"', rng.choice(RAW))
    else:
        holder[path[-1]] = rng.choice(VALUES)
    return json.dumps(data)


def is_sweep(run):
    return (run / "journal.log").exists()


def mutate_config(rng, run):
    file = run / ("sweep.yaml" if is_sweep(run) else "config.yaml")
    lines = file.read_text().splitlines()
    at = rng.randrange(len(lines))
    key = lines[at].partition(":")[0]
    way = rng.random()
    if way < 0.75:
        lines[at] = f"{key}: {rng.choice(WORDS)}"
    elif way < 0.85:
        del lines[at]
    elif way < 0.9:
        lines.insert(
            at, rng.choice(["training:", "  - x", "\t", "%YAML 9", "---", "...", f"unknown: {rng.choice(WORDS)}"])
        )
    else:
        flip(rng, file)
        return f"config, bytes near {key}"
    file.write_text("\n".join(lines) + "\n")
    return f"config {lines[min(at, len(lines) - 1)][:80]!r}"


def mutate_state(rng, run):
    seed = rng.getrandbits(32)
    for checkpoint in checkpoints(run):
        told = forge_json(random.Random(seed), json.loads((checkpoint / "state.json").read_text()))
        (checkpoint / "state.json").write_text(told)
        vouch(checkpoint)
    return "state.json"


def mutate_manifest(rng, run):
    seed = rng.getrandbits(32)
    for checkpoint in checkpoints(run):
        file = checkpoint / "manifest.json"
        file.write_text(forge_json(random.Random(seed), json.loads(file.read_text())))
    return "manifest.json"


def mutate_tensors(rng, run):
    paths = checkpoints(run)
    name = rng.choice(sorted(file.name for file in paths[-1].glob("*.safetensors")))
    seed, way = rng.getrandbits(32), rng.random()
    for checkpoint in paths:
        file = checkpoint / name
        if not file.exists():
            continue
        if way < 0.15:
            flip(random.Random(seed), file)
        elif way < 0.25:
            os.truncate(file, random.Random(seed).randrange(file.stat().st_size))
        else:
            arrays = load_file(file)
            if not arrays:
                continue
            save_file(forge_arrays(random.Random(seed), arrays), file)
        vouch(checkpoint)
    return f"{name}, {seed}, {way:.2f}"


def mutate_env_states(rng, run):
    """Change bytes inside of what the states of territory pack."""
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
        vouch(checkpoint)
    return "states of envs"


def forge_arrays(rng, arrays):
    name = rng.choice(sorted(arrays))
    array, way = arrays[name], rng.choice(["shape", "dtype", "value", "one", "drop", "rename", "add", "size"])
    if way == "shape":
        arrays[name] = array.reshape(-1)[None] if array.size else np.zeros((0, 3), array.dtype)
    elif way == "size":
        arrays[name] = np.resize(array, [rng.randrange(6) for _ in range(rng.randrange(4))]).astype(array.dtype)
    elif way == "dtype":
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(rng.choice(DTYPES))
    elif way in ("value", "one"):
        value = rng.choice(SCALARS)
        with np.errstate(all="ignore"):
            forged = np.full_like(array, np.asarray(value).astype(array.dtype))
        if way == "one" and array.size:
            flat = array.reshape(-1).copy()
            flat[rng.randrange(flat.size)] = forged.reshape(-1)[0]
            forged = flat.reshape(array.shape)
        arrays[name] = forged
    else:
        if way != "add":
            del arrays[name]
        if way != "drop":
            arrays[rng.choice(["x", "0/x", "guest/x/y", "state/0", "actions/9", "../x", "a" * 1000])] = array
    return in_order(arrays)


def mutate_files(rng, run):
    paths = sorted(path for path in run.rglob("*"))
    new = [
        run / name for name in ("config.tmp", "summary.tmp", "checkpoints/.saving-1", "checkpoints/ckpt-000000000999")
    ]
    path = rng.choice([*paths, *new])
    way = rng.choice(["link", "folder", "pipe", "socket", "empty", "sparse", "hard", "missing", "self", "copy"])
    outside = run.parent / "outside"
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if way == "link":
        path.symlink_to(
            rng.choice([outside / "victim.txt", outside / "folder", outside / "nothing", "/dev/zero", "/etc"])
        )
    elif way == "self":
        path.symlink_to(path)
    elif way == "folder":
        path.mkdir()
        (path / "x").write_text("x")
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "socket":
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)  # names of sockets are short
    elif way == "empty":
        path.touch()
    elif way == "sparse":
        path.touch()
        os.truncate(path, 1 << rng.choice([24, 36, 42]))
    elif way == "hard":
        os.link(outside / "victim.txt", path)
    elif way == "copy":
        shutil.copy(rng.choice([other for other in run.parent.joinpath("other").rglob("*") if other.is_file()]), path)
    return f"{way} {path.relative_to(run)}"


def mutate_text(rng, run):
    names = ["metrics.jsonl", "progress.csv", "summary.json", ".lock"]
    if is_sweep(run):
        names = [*["journal.log"] * 3, "results.csv", ".lock", "trials/0/summary.json", "trials/1/metrics.jsonl"]
    file = run / rng.choice(names)
    lines = file.read_bytes().splitlines() or [b""]
    way, at = rng.choice(["flip", "line", "long", "forge", "drop"]), rng.randrange(len(lines))
    if way == "flip":
        flip(rng, file)
        return f"{file.name} flipped"
    if way == "line":
        lines[at] = rng.choice(
            [b"", b"{", b"[]", b"null", b"\xff\x00", b",,,,", b'"', b'{"time/total_timesteps": NaN}']
        )
    elif way == "long":
        lines[at] += b"x" * 3_000_000
    elif way == "drop":
        del lines[at]
    elif file.suffix in (".json", ".jsonl", ".log"):
        told = json.loads(b"\n".join(lines) if file.suffix == ".json" else lines[at])
        lines = [b""] if file.suffix == ".json" else lines
        lines[at % len(lines)] = forge_json(rng, told).encode()
    file.write_bytes(b"\n".join(lines) + b"\n" * rng.randrange(3))
    return f"{file.name} {way} {at}"


def flip(rng, file):
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
def finished(tmp_path_factory):
    where = tmp_path_factory.mktemp("finished")
    runs = {
        name: corral.train(env, **{**SMALL, **settings, "output_dir": str(where / name), "quiet": True}).run_dir
        for name, (env, settings) in RUNS.items()
    }
    small = {**SMALL, "eval_freq": 0, "output_dir": str(where / "sweep"), "quiet": True}
    swept = run_sweep("CartPole-v1", search={"learning_rate": "log:1e-4:1e-3"}, trials=2, **small)
    return {**runs, "sweep": swept.sweep_dir}


def try_one(number, finished, warm, tmp_path):
    """What went wrong with a mutation, or None; and how its command ended."""
    rng = random.Random(number)
    place = tmp_path / str(number)
    outside = place / "outside"
    made = rng.choice(sorted(finished))
    mutators = {"sweep": SWEEP_MUTATORS, "states": STATE_MUTATORS}.get(made, MUTATORS)
    shutil.copytree(finished[made], place / "run")
    shutil.copytree(finished["numpy"], place / "other")
    (outside / "folder" / "ckpt-000000000001").mkdir(parents=True)
    for file in (outside / "victim.txt", outside / "folder" / "keep.txt"):
        file.write_text("keep me\n")
    mark = f"open({str(outside / 'executed')!r}, 'w').close()\n"
    for name in ("evil.py", "envpool.py", "pyboy.py", "ale_py.py", "numba.py"):
        (place / name).write_text(mark)
    told = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        with contextlib.suppress(
            OSError, LookupError, ValueError, MemoryError, RecursionError, SafetensorError
        ):  # of what the first one left
            told.append(rng.choice(mutators)(rng, place / "run"))
    before = look_at(place, leave=place / "run")
    command = ("resume", "run") if made == "sweep" else rng.choice(COMMANDS)
    ended = warm.run(command, place, tmp_path, SECONDS)
    after = {path: seen for path, seen in look_at(place, leave=place / "run").items() if "comparison" not in path}
    ours = ended.err.partition("The env's own traceback:")[0]
    # A config may make training as long as it likes.
    begun = "resuming" in ended.out or "sweeping" in ended.out
    trains = ended.timed_out and begun and any(what.startswith("config") for what in told)
    problem = None
    if ended.timed_out and not trains:
        problem = "it hung"
    elif not trains and ended.code not in (0, 1, 2, 3):
        problem = "it crashed"
    elif "Traceback" in ours:
        problem = "a traceback"
    elif ended.code and not trains and sum(line.startswith("corral ") for line in ours.splitlines()) != 1:
        problem = "not one line that says why"
    elif after != before:
        problem = f"changed outside: {sorted(set(after) ^ set(before)) or 'contents'}"
    shutil.rmtree(place)
    return problem and f"mutation {number}: {problem}; {'; '.join(told)}; {' '.join(command)}; {ended}", ended


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(3600)
def test_no_mutation_of_a_run_directory_does_harm(tmp_path, finished, warm, part):
    problems, codes = [], {}
    for number in range(part, MUTATIONS, PARTS):
        problem, ended = try_one(number, finished, warm, tmp_path)
        codes[ended.code] = codes.get(ended.code, 0) + 1
        problems += [problem] if problem else []
    print(f"exit codes: {codes}")
    assert not problems, f"{len(problems)} of {MUTATIONS // PARTS}:\n\n" + "\n\n".join(problems[:10])


def test_a_few_mutations_of_a_run_directory_do_no_harm(tmp_path, finished, warm):
    for number in range(MUTATIONS, MUTATIONS + 25):
        assert try_one(number, finished, warm, tmp_path)[0] is None
