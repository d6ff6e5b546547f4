"""The request of a sweep: all settings, checked before anything runs, and stored in ``sweep.yaml``."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from corral.config.schema import TrainConfig, parse_config
from corral.config.yaml_file import read_mapping
from corral.core.errors import UsageError, one_line
from corral.core.files import replace_file, to_attributes, to_data
from corral.core.seeding import fresh_seed
from corral.core.suggestions import did_you_mean
from corral.envs.registry import recommended_settings
from corral.sweeps.search_space import Space, as_setting, default_search, first_choices, parse_space

__all__ = ["PRESETS", "SweepRequest", "choose_presets", "make_request"]

PRESETS: dict[str, dict[str, Any]] = {
    "A": {"net_arch": [512, 512]},
    "B": {"net_arch": [256, 256], "ent_coef": 0.05},
    "C": {"net_arch": [256, 256], "learning_rate": 3e-4, "learning_rate_end": 1e-5},
}
"""Built-in presets: a large network, more exploration, a learning rate that decreases."""
DEFAULT_TRIALS = 20
MAX_SEEDS, MAX_JOBS, MAX_TRIALS = 1000, 1024, 1_000_000
_SAME_FOR_ALL = (
    *("env", "policy", "seed", "output_dir", "timesteps", "num_episodes", "duration"),
    *("eval_freq", "eval_episodes", "eval_max_steps"),
)
_MAY_CHANGE = ("trials", "jobs")
"""What may be different when a sweep is continued."""
_Presets = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What a sweep should do, as plain data. Exactly one of ``presets`` and ``search`` is given."""

    env: str
    settings: dict[str, Any]
    """The settings that all trials share, including those that a built-in env recommends."""
    seed: int
    seeds: int
    """Number of seeds that each trial trains with: ``seed``, ``seed + 1``, …"""
    presets: dict[str, dict[str, Any]] | None
    """The settings of each preset, by name."""
    search: dict[str, str] | None
    """The range or the choices of each searched setting, as text (see ``search_space``)."""
    trials: int | None
    prune: bool
    jobs: int

    @property
    def base(self) -> dict[str, Any]:
        """The settings that all trials share, including env and seed."""
        return {**self.settings, "env": self.env, "seed": self.seed}

    @property
    def space(self) -> Space:
        """The search space; empty for presets."""
        return parse_space(self.search or {}, self.base)

    @property
    def all_seeds(self) -> list[int]:
        """The seeds that every trial trains with."""
        return [self.seed + i for i in range(self.seeds)]

    @property
    def objective_name(self) -> str:
        """Name of the number that trials are compared by."""
        return "evaluation reward" if self.any_config.eval_freq else "mean reward"

    @property
    def any_config(self) -> TrainConfig:
        """A config that a trial could have; it has the settings that all trials share."""
        return parse_config({**self.base, **first_choices(self.space)})

    def config_of(self, varied: Mapping[str, Any]) -> TrainConfig:
        """Return the config of a trial with its first seed; ``varied`` holds the settings in which trials differ."""
        return parse_config({**self.base, **{name: as_setting(name, value) for name, value in varied.items()}})

    def check(self) -> None:
        """Raise a UsageError for a request that cannot be carried out."""
        for name, value, largest in (
            ("seeds", self.seeds, MAX_SEEDS),
            ("jobs", self.jobs, MAX_JOBS),
            ("trials", 1 if self.trials is None else self.trials, MAX_TRIALS),
        ):
            if not 1 <= value <= largest:
                raise UsageError(f"{name} {value}: should be from 1 to {largest}")
        if (self.presets is None) == (self.search is None) or (self.search is None) != (self.trials is None):
            raise UsageError("a sweep has either presets, or a search and a number of trials")
        for settings in (self.settings, *(self.presets or {}).values()):
            check_no_hooks(settings)
        parse_config({"env": self.env, "seed": self.all_seeds[-1]})
        self.any_config  # noqa: B018 - raises a UsageError if the settings are not valid
        for name, preset in (self.presets or {}).items():
            _check_preset(name, preset, self.base)

    def with_seed(self, seed: int) -> SweepRequest:
        """Return the same request with another seed."""
        return dataclasses.replace(self, seed=seed)

    def check_continues(self, earlier: SweepRequest) -> None:
        """Raise a UsageError if this request differs from ``earlier`` in more than the numbers of trials and jobs."""
        data, earlier_data = to_data(self, REQUEST_KEYS), to_data(earlier, REQUEST_KEYS)
        for name in data:
            new, old = data[name], earlier_data[name]
            if name in _MAY_CHANGE or new == old:
                continue
            if isinstance(new, dict) and isinstance(old, dict):
                name = next(key for key in {**new, **old} if new.get(key) != old.get(key))
                new, old = new.get(name), old.get(name)
            raise UsageError(
                f"the sweep in this directory was started with {name} {old!r}, not {new!r}; "
                f"only {' and '.join(_MAY_CHANGE)} may change. Choose another --output-dir for another sweep"
            )

    def write(self, path: Path) -> None:
        """Write the request to a file from which ``read`` returns it."""
        data = json.loads(json.dumps(to_data(self, REQUEST_KEYS)))  # no shared objects, for which YAML writes aliases
        text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)
        head = "# The request of this sweep; `corral resume` on this directory continues it.\n"
        replace_file(path, (head + text).encode())

    @classmethod
    def read(cls, path: Path) -> SweepRequest:
        """Return the request in a file; raise a UsageError if the file is damaged."""
        data = to_attributes(read_mapping(path, "sweep", untrusted=True), REQUEST_KEYS)
        try:
            TypeAdapter(cls).validate_json(json.dumps(data), strict=True)
            request = cls(**data)  # raises a TypeError for an unknown key
            request.check()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = f"{one_line('/'.join(map(str, first['loc'])))}: {one_line(first['msg'])}"
        except (TypeError, AttributeError, ValueError, UsageError) as error:
            reason = one_line(error)
        else:
            return request
        raise UsageError(f"{path} is damaged: {reason}; start the sweep again in another --output-dir")


REQUEST_KEYS = {
    "env": "env",
    "settings": "settings",
    "seed": "seed",
    "seeds": "seeds",
    "presets": "presets",
    "search": "search",
    "trials": "trials",
    "prune": "prune",
    "jobs": "jobs",
}
"""Attributes of ``SweepRequest`` and their keys in ``sweep.yaml``."""


def check_no_hooks(settings: Mapping[str, Any]) -> None:
    """Raise a UsageError if the settings of a sweep include hooks."""
    if settings.get("hooks"):
        raise UsageError("hooks: a sweep calls none; leave them out")


def make_request(
    env: str,
    settings: Mapping[str, Any],
    presets: _Presets | None,
    search: Mapping[str, str] | None,
    trials: int | None,
    seeds: int,
    jobs: int,
    prune: bool,
) -> SweepRequest:
    """Return the request for these arguments of ``sweep``; raise a UsageError if it cannot be carried out.

    ``settings`` are those that the user gave. Without a seed among them, one is drawn.
    """
    if presets is not None and (search is not None or trials is not None):
        raise UsageError("presets are tried as they are; leave out --trials and --search, or the presets")
    if presets is None and search is None and trials is None:
        raise UsageError("what should be tried? Presets: --preset A B C; or a search: --trials 20")
    if settings.get("n_envs") == "auto":
        raise UsageError("trials are compared, so they need the same n_envs, a number; `corral tune` finds a good one")
    given = {name: value for name, value in settings.items() if name not in ("seed", "output_dir")}
    seed = parse_config({"env": env, "seed": settings.get("seed")}).seed
    shared, presets = _add_env_settings(env, given, presets)
    base = {**shared, "env": env}
    space: Space = {}
    if presets is None:
        search = dict(search) if search else default_search(base, given)
        space = parse_space(search, base)
        trials = DEFAULT_TRIALS if trials is None else trials
    else:
        presets = {name: _plain_data(preset, _check_preset(name, preset, base)) for name, preset in presets.items()}
    config = parse_config({**base, **first_choices(space)})
    request = SweepRequest(
        env=env,
        settings=_plain_data(shared, config, unchanged=space),
        seed=fresh_seed() if seed is None else seed,
        seeds=seeds,
        presets=None if presets is None else {name: dict(preset) for name, preset in presets.items()},
        search=None if search is None else dict(search),
        trials=trials,
        prune=prune,
        jobs=jobs,
    )
    request.check()
    return request


def _add_env_settings(
    env: str, given: dict[str, Any], presets: _Presets | None
) -> tuple[dict[str, Any], _Presets | None]:
    """Return settings and presets with what the env recommends, as training would add it.

    A recommended setting that not every preset gets belongs to the presets that get it. The budget and the others of
    ``_SAME_FOR_ALL`` always belong to the settings.
    """
    recommended = recommended_settings(env, given)
    if presets is None:
        return {**recommended, **given}, None
    complete = {
        label: {**recommended_settings(env, {**given, **preset}), **preset} for label, preset in presets.items()
    }
    shared = {
        name: value
        for name, value in recommended.items()
        if name in _SAME_FOR_ALL or all(name in preset for preset in complete.values())
    }
    return {**shared, **given}, {
        label: {name: value for name, value in preset.items() if name in presets[label] or name not in shared}
        for label, preset in complete.items()
    }


def choose_presets(
    names: Sequence[str] | None, file: str | os.PathLike[str] | None
) -> dict[str, dict[str, Any]] | None:
    """Return the presets of these names, from the file and the built-in ones.

    Without names, return all of the file; without both, return None.
    """
    presets = dict(PRESETS)
    if file is not None:
        in_file = read_mapping(file, "presets")
        for name, preset in in_file.items():
            if not isinstance(preset, dict):
                raise UsageError(f"presets {str(file)!r}: {name} should hold settings, not {preset!r}")
        if not in_file:
            raise UsageError(f"presets {str(file)!r} holds none; write `name: {{learning_rate: 1e-4}}`")
        for name, preset in in_file.items():
            presets[str(name)] = {str(key): value for key, value in preset.items()}
        names = [str(name) for name in in_file] if names is None else names
    if names is None:
        return None
    for name in names:
        if name not in presets:
            raise UsageError(f"unknown preset {name!r}{did_you_mean(name, presets)}; there are: {', '.join(presets)}")
    return {name: presets[name] for name in names}


def _check_preset(name: str, preset: Mapping[str, Any], base: Mapping[str, Any]) -> TrainConfig:
    """Return the config of a preset; raise a UsageError if its name or its settings are not valid."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(f"preset {name!r}: its name becomes a directory; use letters, digits, '.', '-' and '_'")
    for key in preset:
        if key in _SAME_FOR_ALL:
            raise UsageError(f"preset {name}: {key} is the same for all presets; give it as a flag")
    try:
        return parse_config({**base, **preset})
    except UsageError as error:
        raise UsageError(f"preset {name}: {error}") from None


def _plain_data(values: Mapping[str, Any], config: TrainConfig, unchanged: Container[str] = ()) -> dict[str, Any]:
    """Return ``values`` as the config parsed them, as JSON data.

    A value stays as it was given if it is ``unchanged``, or if the config has None because another setting replaces it.
    """
    parsed = config.model_dump(mode="json")
    data = {
        name: value if name in unchanged or parsed[name] is None else parsed[name] for name, value in values.items()
    }
    return dict(json.loads(json.dumps(data)))
