"""The package ``corral_games`` exports the env classes of all games and loads each when it is first used."""

import subprocess
import sys

import pytest

import corral_games


def test_every_game_is_exported_and_documented():
    assert sorted(corral_games.__all__) == ["CardBattle", "GameBoy", "Territory"] == dir(corral_games)
    assert all(getattr(corral_games, name).__doc__ for name in corral_games.__all__)


def test_exported_classes_make_working_envs():
    from corral_games import CardBattle, Territory

    env = corral_games.CardBattle(opponent="greedy")
    env.reset(seed=0)
    assert env.action_masks().any() and isinstance(env, CardBattle)
    assert isinstance(corral_games.Territory(), Territory)


def test_importing_the_package_loads_no_game_and_no_optional_package():
    code = (
        "import sys, corral_games; before = 'gymnasium' in sys.modules; "
        "from corral_games import CardBattle, GameBoy, Territory; "
        "print(before, [m for m in ('pyboy', 'numba', 'torch', 'stable_baselines3') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False []"


def test_unknown_names_raise_attribute_errors():
    with pytest.raises(AttributeError, match=r"no attribute 'Chess'.*CardBattle"):
        corral_games.Chess  # noqa: B018
