"""Code that a run directory names: what has to be repeated, and the words that say so."""

import pytest

from corral.config.schema import parse_config
from corral.core.errors import CodeNotConfirmed, UsageError
from corral.storage.named_code import code_flags, require_same_code, resume_command


def config(**values):
    return parse_config({"env": "CartPole-v1", "timesteps": 100, **values})


@pytest.mark.parametrize("old", ["corral.games.card_battle:CardBattle", "corral.games.territory:Territory"])
def test_games_that_have_moved_are_named_by_their_new_place(old):
    recorded, new = config(env=old), old.replace("corral.games.", "corral_games.")
    assert code_flags(recorded) == f"--env {new}"
    assert resume_command("run", recorded).endswith(f"resume run --env {new}")
    for given in (old, new):
        require_same_code(recorded, given, None)
    with pytest.raises(CodeNotConfirmed, match=f"repeat it: --env {new}"):
        require_same_code(recorded, None, None)


def test_a_hook_that_was_recorded_twice_and_is_given_once_is_asked_for_once():
    recorded = config(hooks=["a.py:make", "a.py:make"])
    with pytest.raises(CodeNotConfirmed, match=r"repeat it: --hook a\.py:make$"):
        require_same_code(recorded, None, None, ["elsewhere/a.py:make"])
    require_same_code(recorded, None, None, ["a.py:make", "a.py:make"])
    with pytest.raises(UsageError, match="is not what the run was made with"):
        require_same_code(recorded, "Other-v1", None, [])
