"""Checks once in a run that its env is deterministic: replays the episode of env 0 in the evaluation env."""

from __future__ import annotations

import dataclasses
import shlex

from corral.core.entry_points import PYTHON_PREFIX
from corral.core.errors import CorralError
from corral.core.seeding import preserve_global_generators
from corral.core.stdio import command
from corral.rollout.env_positions import EnvPositions
from corral.training.run import Run
from corral.vec import CorralVectorEnv
from corral.vec.replay_log import EnvPosition

__all__ = ["check_replay"]

_MAX_STEPS, _MAX_SECONDS = 1000, 5.0
"""An episode that is longer, or whose replay is expected to take longer, is not replayed."""


def check_replay(run: Run) -> str | None:
    """Replay the current episode of env 0 in the evaluation env; return a warning if it reaches another observation.

    Call this before an evaluation, which resets the evaluation env. An exception of the env does not end the run.
    """
    position = None if run.replay_checked or run.eval_env is None else _replayable_position(run)
    if position is None or run.eval_env is None:
        return None
    run.replay_checked = True
    with preserve_global_generators():
        try:
            is_reached = _reaches(run.eval_env, position)
            run.progress.fault_counts += dataclasses.replace(run.eval_env.take_report().fault_counts, inexact=0)
        except CorralError:  # says nothing about determinism, but the evaluation env is unusable now
            run.eval_env.close()
            run.eval_env = run.make_single_env(None)
            return None
        if is_reached or _seeded_env_reaches(run, position):
            return None
    env = "ENV" if run.config.env.startswith(PYTHON_PREFIX) else shlex.quote(run.config.env)
    return (
        f"{run.config.env} is not deterministic: when {position.steps} steps of env 0 were replayed with the same seed "
        "and actions, the observation was different, so that resume and recovery are not exact; "
        f"`{command()} doctor {env}` says more"
    )


def _replayable_position(run: Run) -> EnvPosition | None:
    """Return the position of env 0 if replaying its actions takes little time; otherwise None."""
    if run.opponents is not None or run.factory.is_vector:
        return None
    arrays, n_envs = run.source.env_positions(), run.config.n_envs
    length = int(arrays["length"][0])
    if not 1 <= length <= _MAX_STEPS or "actions/0" not in arrays or "state/0" in arrays:
        return None
    n_parallel = min(n_envs, max(1, run.backend.num_workers))  # envs that step at the same time
    if length * n_parallel * run.progress.seconds / max(1, run.progress.timesteps) > _MAX_SECONDS:
        return None
    positions = EnvPositions(run.seed, n_envs, run.learner.policy.codec)
    positions.restore(arrays)
    return positions.positions_of([0])[0]


def _reaches(env: CorralVectorEnv, position: EnvPosition) -> bool:
    """Replay the position's actions; return whether the env then shows the same observation."""
    env.reset_arrays([position.seed])
    return not env.restore([position])


def _seeded_env_reaches(run: Run, position: EnvPosition) -> bool:
    """Replay in a new env that is seeded as env 0 was; return True if that fails and nothing is known.

    The evaluation env is made without the run's seed. An env that draws from global random generators differs there,
    although a resumed run repeats it exactly.
    """
    try:
        env = run.make_single_env(run.seed)
        try:
            return _reaches(env, position)
        finally:
            env.close()
    except CorralError:
        return True
