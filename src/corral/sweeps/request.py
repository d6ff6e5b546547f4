"""What was asked of a sweep: every setting checked before anything runs, and kept in ``sweep.yaml``."""

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
from corral.core.files import by_attribute, replace_file, to_data
from corral.core.seeding import fresh_seed
from corral.core.suggestions import did_you_mean
from corral.envs.registry import settings_of
from corral.sweeps.search_space import Space, as_setting, default_words, parse_space, some_settings

__all__ = ["PRESETS", "SweepRequest", "choose_presets", "make_request"]

PRESETS: dict[str, dict[str, Any]] = {
    "A": {"net_arch": [512, 512]},
    "B": {"net_arch": [256, 256], "ent_coef": 0.05},
    "C": {"net_arch": [256, 256], "learning_rate": 3e-4, "learning_rate_end": 1e-5},
}
"""Three that are worth a try: a large network, more exploration, a learning rate that falls."""
DEFAULT_TRIALS = 20
MOST_SEEDS, MOST_JOBS, MOST_TRIALS = 1000, 1024, 1_000_000
_SAME_FOR_ALL = (
    *("env", "policy", "seed", "output_dir", "timesteps", "num_episodes", "duration"),
    *("eval_freq", "eval_episodes", "eval_max_steps"),
)
_MAY_CHANGE = ("trials", "jobs")
_Presets = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """Either ``presets`` or ``search`` is given; both as plain data."""

    env: str
    settings: dict[str, Any]
    """What all trials have in common, with what a built-in env brings."""
    seed: int
    seeds: int
    """How many seeds each trial trains with: ``seed``, ``seed + 1``, …"""
    presets: dict[str, dict[str, Any]] | None
    search: dict[str, str] | None
    trials: int | None
    prune: bool
    jobs: int

    @property
    def base(self) -> dict[str, Any]:
        """What every trial has in common, env and seed included."""
        return {**self.settings, "env": self.env, "seed": self.seed}

    @property
    def space(self) -> Space:
        """What is searched; empty for presets."""
        return parse_space(self.search or {}, self.base)

    @property
    def all_seeds(self) -> list[int]:
        """The seeds that every trial trains with."""
        return [self.seed + i for i in range(self.seeds)]

    @property
    def objective_name(self) -> str:
        """What a trial is judged by, in words."""
        return "evaluation reward" if self.any_config.eval_freq else "mean reward"

    @property
    def any_config(self) -> TrainConfig:
        """A config that any trial could have: where trials agree, it agrees."""
        return parse_config({**self.base, **some_settings(self.space)})

    def config_of(self, varied: Mapping[str, Any]) -> TrainConfig:
        """The config of a trial, with its first seed; ``varied`` is what tells it from the others."""
        return parse_config({**self.base, **{name: as_setting(name, value) for name, value in varied.items()}})

    def check(self) -> None:
        """Refuse whatever no trial could do."""
        for name, value, most in (
            ("seeds", self.seeds, MOST_SEEDS),
            ("jobs", self.jobs, MOST_JOBS),
            ("trials", 1 if self.trials is None else self.trials, MOST_TRIALS),
        ):
            if not 1 <= value <= most:
                raise UsageError(f"{name} {value}: should be from 1 to {most}")
        if (self.presets is None) == (self.search is None) or (self.search is None) != (self.trials is None):
            raise UsageError("a sweep has either presets, or a search and a number of trials")
        for settings in (self.settings, *(self.presets or {}).values()):
            check_no_hooks(settings)
        parse_config({"env": self.env, "seed": self.all_seeds[-1]})
        self.any_config  # noqa: B018 - raises if there is none
        for name, preset in (self.presets or {}).items():
            _check_preset(name, preset, self.base)

    def with_seed(self, seed: int) -> SweepRequest:
        """The same with another seed."""
        return dataclasses.replace(self, seed=seed)

    def continues(self, earlier: SweepRequest) -> None:
        """Refuse to go on with a sweep that was asked for otherwise. The number of trials and of jobs may change."""
        mine, before = to_data(self, REQUEST_KEYS), to_data(earlier, REQUEST_KEYS)
        for name in (name for name in mine if name not in _MAY_CHANGE and mine[name] != before[name]):
            now, then = mine[name], before[name]
            if isinstance(now, dict) and isinstance(then, dict):
                name = next(key for key in {**now, **then} if now.get(key) != then.get(key))
                now, then = now.get(name), then.get(name)
            raise UsageError(
                f"the sweep in this directory was asked for with {name} {then!r}, not {now!r}; "
                f"only {' and '.join(_MAY_CHANGE)} may change. Choose another --output-dir for another sweep"
            )

    def write(self, path: Path) -> None:
        """Keep it; ``read`` has it again."""
        data = json.loads(json.dumps(to_data(self, REQUEST_KEYS)))  # YAML would give a name to what occurs twice
        text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)
        replace_file(path, f"# What was asked; `corral resume` on this directory goes on with it.\n{text}".encode())

    @classmethod
    def read(cls, path: Path) -> SweepRequest:
        """The request in a sweep's directory."""
        data = by_attribute(read_mapping(path, "sweep", untrusted=True), REQUEST_KEYS)
        try:
            TypeAdapter(cls).validate_json(json.dumps(data), strict=True)
            request = cls(**data)  # refuses what it does not know
            request.check()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            why = f"{one_line('/'.join(map(str, first['loc'])))}: {one_line(first['msg'])}"
        except (TypeError, AttributeError, ValueError, UsageError) as error:
            why = one_line(error)
        else:
            return request
        raise UsageError(f"{path} is damaged: {why}; start the sweep again in another --output-dir")


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
"""Names in ``sweep.yaml``."""


def check_no_hooks(settings: Mapping[str, Any]) -> None:
    """Refuse hooks among the settings of a sweep."""
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
    """Check what was asked and put it in order; the seed is drawn if there is none."""
    if presets is not None and (search is not None or trials is not None):
        raise UsageError("presets are tried as they are; leave out --trials and --search, or the presets")
    if presets is None and search is None and trials is None:
        raise UsageError("what should be tried? Presets: --preset A B C; or a search: --trials 20")
    if settings.get("n_envs") == "auto":
        raise UsageError("trials are compared, so they need the same n_envs, a number; `corral tune` finds a good one")
    values = {name: value for name, value in settings.items() if name not in ("seed", "output_dir")}
    seed = parse_config({"env": env, "seed": settings.get("seed")}).seed
    seed = fresh_seed() if seed is None else seed
    given = values
    values, presets = _with_own(env, values, presets)
    base = {**values, "env": env}
    words, space = None, {}
    if presets is None:
        words = dict(search) if search else default_words(base, given)
        space = parse_space(words, base)
        trials = DEFAULT_TRIALS if trials is None else trials
    else:
        presets = {name: _plain(preset, _check_preset(name, preset, base)) for name, preset in presets.items()}
    config = parse_config({**base, **some_settings(space)})
    request = SweepRequest(
        env=env,
        settings=_plain(values, config, leave=space),
        seed=seed,
        seeds=seeds,
        presets=None if presets is None else {name: dict(preset) for name, preset in presets.items()},
        search=words,
        trials=trials,
        prune=prune,
        jobs=jobs,
    )
    request.check()
    return request


def _with_own(env: str, values: dict[str, Any], presets: _Presets | None) -> tuple[dict[str, Any], _Presets | None]:
    """Settings and presets with what the env brings, as training would add it; the budget is the same for all."""
    own = settings_of(env, values)
    if presets is None:
        return {**own, **values}, None
    whole = {name: {**settings_of(env, {**values, **preset}), **preset} for name, preset in presets.items()}
    common = {
        name: value
        for name, value in own.items()
        if name in _SAME_FOR_ALL or all(name in preset for preset in whole.values())
    }
    return {**common, **values}, {
        label: {name: value for name, value in preset.items() if name in presets[label] or name not in common}
        for label, preset in whole.items()
    }


def choose_presets(
    names: Sequence[str] | None, file: str | os.PathLike[str] | None
) -> dict[str, dict[str, Any]] | None:
    """Presets by name, of a file and of those built in; all of the file if no name is given, None if no file is."""
    known = dict(PRESETS)
    if file is not None:
        own = read_mapping(file, "presets")
        for name, preset in own.items():
            if not isinstance(preset, dict):
                raise UsageError(f"presets {str(file)!r}: {name} should hold settings, not {preset!r}")
        if not own:
            raise UsageError(f"presets {str(file)!r} holds none; write `name: {{learning_rate: 1e-4}}`")
        for name, preset in own.items():
            known[str(name)] = {str(key): value for key, value in preset.items()}
        names = [str(name) for name in own] if names is None else names
    if names is None:
        return None
    for name in names:
        if name not in known:
            raise UsageError(f"unknown preset {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}")
    return {name: known[name] for name in names}


def _check_preset(name: str, preset: Mapping[str, Any], base: Mapping[str, Any]) -> TrainConfig:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(f"preset {name!r}: its name becomes a directory; use letters, digits, '.', '-' and '_'")
    for key in preset:
        if key in _SAME_FOR_ALL:
            raise UsageError(f"preset {name}: {key} is the same for all presets; give it as a flag")
    try:
        return parse_config({**base, **preset})
    except UsageError as error:
        raise UsageError(f"preset {name}: {error}") from None


def _plain(values: Mapping[str, Any], config: TrainConfig, leave: Container[str] = ()) -> dict[str, Any]:
    """``values`` as the config took them, for a file; what it settled by other settings stays as it was given."""
    taken = config.model_dump(mode="json")
    stays = {name for name in values if name in leave or taken[name] is None}
    plain = {name: value if name in stays else taken[name] for name, value in values.items()}
    return dict(json.loads(json.dumps(plain)))
