"""Code that a run directory names is imported only if the user names it again; messages say which flags do that."""

import pytest

from corral.config.schema import parse_config
from corral.core.errors import CodeNotConfirmed, UsageError
from corral.storage.named_code import code_flags, require_same_code, resume_command


def make_config(**values):
    return parse_config({"env": "CartPole-v1", "timesteps": 100, **values})


@pytest.mark.parametrize("old_name", ["corral.games.card_battle:CardBattle", "corral.games.territory:Territory"])
def test_games_recorded_under_their_old_module_are_named_by_their_new_one(old_name):
    recorded, new_name = make_config(env=old_name), old_name.replace("corral.games.", "corral_games.")
    assert code_flags(recorded) == f"--env {new_name}"
    assert resume_command("run", recorded).endswith(f"resume run --env {new_name}")
    for given in (old_name, new_name):
        require_same_code(recorded, given, None)
    with pytest.raises(CodeNotConfirmed, match=f"repeat it: --env {new_name}"):
        require_same_code(recorded, None, None)


def test_a_hook_recorded_twice_and_given_once_is_asked_for_once_more():
    recorded = make_config(hooks=["a.py:make", "a.py:make"])
    with pytest.raises(CodeNotConfirmed, match=r"repeat it: --hook a\.py:make$"):
        require_same_code(recorded, None, None, ["elsewhere/a.py:make"])
    require_same_code(recorded, None, None, ["a.py:make", "a.py:make"])
    with pytest.raises(UsageError, match="is not what the run was made with"):
        require_same_code(recorded, "Other-v1", None, [])
