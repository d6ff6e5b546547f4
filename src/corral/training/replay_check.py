"""Whether the env of a run repeats itself: an episode that is under way is played again, once."""

from __future__ import annotations

import dataclasses
import shlex

from corral.core.entry_points import PYTHON
from corral.core.errors import CorralError
from corral.core.seeding import kept_global_generators
from corral.core.stdio import command
from corral.rollout.env_positions import EnvPositions
from corral.training.run import Run
from corral.vec import CorralVectorEnv
from corral.vec.replay_log import EnvPosition

__all__ = ["check_replay"]

_MOST_STEPS, _MOST_SECONDS = 1000, 5.0


def check_replay(run: Run) -> str | None:
    """Play the episode of env 0 again in the evaluation env; the warning to give if it then shows something else.

    To be called before an evaluation, which resets its env. What an env raises here does not end the run.
    """
    position = None if run.replayed or run.eval_env is None else _position(run)
    if position is None or run.eval_env is None:
        return None
    run.replayed = True
    with kept_global_generators():
        try:
            there = _gets_there(run.eval_env, position)
            run.progress.recovery_counts += dataclasses.replace(run.eval_env.drain().recovery_counts, inexact=0)
        except CorralError:  # it says nothing about repeating, but this env can do no more
            run.eval_env.close()
            run.eval_env = run.single_env(None)
            return None
        if there or _another_gets_there(run, position):
            return None
    named = "ENV" if run.config.env.startswith(PYTHON) else shlex.quote(run.config.env)
    return (
        f"{run.config.env} does not repeat itself: when {position.steps} steps of env 0 were played again with the "
        "same seed and actions, it showed something else, so that resume and recovery are not exact; "
        f"`{command()} doctor {named}` says more"
    )


def _position(run: Run) -> EnvPosition | None:
    """Where env 0 is, if it can be brought there by playing a few actions."""
    if run.opponents is not None or run.factory.is_vector:
        return None
    arrays, n_envs = run.source.env_positions(), run.config.n_envs
    length = int(arrays["length"][0])
    if not 1 <= length <= _MOST_STEPS or "actions/0" not in arrays or "state/0" in arrays:
        return None
    together = min(n_envs, max(1, run.backend.num_workers))  # envs that step at the same time
    if length * together * run.progress.seconds / max(1, run.progress.timesteps) > _MOST_SECONDS:
        return None
    positions = EnvPositions(run.seed, n_envs, run.learner.policy.codec)
    positions.restore(arrays)
    return positions.positions_of([0])[0]


def _gets_there(env: CorralVectorEnv, position: EnvPosition) -> bool:
    env.reset_arrays([position.seed])
    return not env.restore([position])


def _another_gets_there(run: Run, position: EnvPosition) -> bool:
    """Whether an env does that is made as env 0 was: the evaluation env's global generators have no seed."""
    try:
        env = run.single_env(run.seed)
        try:
            return _gets_there(env, position)
        finally:
            env.close()
    except CorralError:  # then nothing is known
        return True
