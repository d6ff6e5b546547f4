"""Card battle as a Gymnasium env: each decision of the agent is a step, and an opponent plays the other seat."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.suggestions import did_you_mean
from corral_games.card_battle.bots.bots import BOT_NAMES, make_bot
from corral_games.card_battle.bots.opponents import OpponentMix, bot_opponent
from corral_games.card_battle.engine.decks import DECK_NAMES, RANDOM_DECK
from corral_games.card_battle.engine.options import MAX_OPTIONS
from corral_games.card_battle.engine.rules import Duel, new_duel
from corral_games.card_battle.features.action_features import ACTION_FEATURES, describe_actions
from corral_games.card_battle.features.features import FEATURES, HIGH, LOW, lead, observe
from corral_games.card_battle.render import render_text

__all__ = ["CardBattle", "make"]

_MASKS = np.tri(MAX_OPTIONS + 1, MAX_OPTIONS, -1, dtype=np.bool_)  # row n allows the first n actions
# A saved state is a header (magic number, sizes of the next two parts), JSON, the Mersenne Twister state of
# ``random.Random``, and the duel.
_HEADER = struct.Struct("<4sII")
_RANDOM_STATE = struct.Struct("<625I")
_MAGIC = b"CB01"


class CardBattle(gym.Env[Any, Any]):
    """A duel against an opponent: reduce the opponent's life from 20 to 0. Reward: 1 for a win, -1 for a loss.

    An action is an index into the list of legal actions: ``action_masks`` gives their number, ``render`` shows them.
    The observation is what one player sees (``features.FEATURES``). With ``action_features`` it is a Dict that also has
    a row of features for each legal action (``action_rows.ACTION_FEATURES``).

    These arguments can also be given for one episode as reset options:

    - ``opponent``: one of ``opponents``; a mix of them such as ``mixed:random=1,greedy=3``, drawn for each episode; a
      ``corral.envs.opponent_protocol.Player``; or an object with a ``predict`` method like Stable-Baselines3's;
    - ``deck``, ``opponent_deck``: one of ``decks.DECK_NAMES``, or ``random``;
    - ``seat``: 0 to have the first turn, 1 to have the second, None for either at random.

    ``shaping`` (0 to 1) adds potential-based shaping, ``gamma * p(s') - p(s)``, to the rewards. The potential p is the
    agent's lead in life and on the board, at most half of ``shaping``. With the learner's ``gamma`` it does not change
    which policy is optimal (Ng, Harada and Russell 1999, "Policy invariance under reward transformations").

    ``won`` in the info of the last step is 1 or 0, or 0.5 for a draw or an episode truncated after ``max_steps``.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 2}
    opponents = BOT_NAMES

    def __init__(
        self,
        opponent: Any = "greedy",
        deck: str = RANDOM_DECK,
        opponent_deck: str = RANDOM_DECK,
        shaping: float = 0.0,
        gamma: float = 0.99,
        action_features: bool = False,
        max_steps: int = 500,
        seat: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not 0 <= shaping <= 1:
            raise UsageError(f"shaping {shaping!r} should be from 0 (off) to 1")
        if not 0 < gamma <= 1:
            raise UsageError(f"gamma {gamma!r} should be above 0 and at most 1; use the learner's")
        if max_steps < 1:
            raise UsageError(f"max_steps {max_steps!r} should be at least 1")
        if render_mode not in (None, "ansi"):
            raise UsageError(f"render_mode {render_mode!r}: card-battle is drawn as text only, with ansi")
        self._opponent_mix = OpponentMix(opponent)
        self._decks = (_checked_deck(deck), _checked_deck(opponent_deck))
        self._default_seat = _checked_seat(seat)
        self.shaping, self.gamma, self.max_steps = float(shaping), float(gamma), int(max_steps)
        self.action_features = bool(action_features)
        self.render_mode = render_mode
        features = spaces.Box(LOW, HIGH, (len(FEATURES),), np.float32)
        rows = spaces.Box(LOW, HIGH, (MAX_OPTIONS, len(ACTION_FEATURES)), np.float16)
        self.observation_space: spaces.Space[Any] = (
            spaces.Dict({"observation": features, "action_features": rows}) if self.action_features else features
        )
        self.action_space = spaces.Discrete(MAX_OPTIONS)
        self._duel: Duel | None = None
        self._opponent = self._opponent_mix.draw(0.0)
        self._seat = self._steps = 0
        self._is_over = True
        self._potential = 0.0
        self._rng = random.Random(0)
        self._generator = np.random.default_rng(0)

    # ---- Gymnasium ---------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a duel and play it to the agent's first decision. Options: opponent, seat, deck, opponent_deck."""
        overrides = _checked_options(options)
        super().reset(seed=seed)
        # The same numbers are drawn with any options, so that an option changes only the setting that it names.
        seat_number, *deck_numbers, opponent_number = self.np_random.random(4).tolist()
        duel_seed, bot_seed, player_seed = self.np_random.integers(1 << 31, size=3).tolist()
        seat = overrides.get("seat", self._default_seat)
        self._seat = int(2 * seat_number) if seat is None else seat
        # Deck numbers belong to seats: the agent in the other seat gets the deck that its opponent would have had.
        deck = _drawn_deck(overrides.get("deck", self._decks[0]), deck_numbers[self._seat])
        opponent_deck = _drawn_deck(overrides.get("opponent_deck", self._decks[1]), deck_numbers[1 - self._seat])
        self._opponent = overrides.get("opponent", self._opponent_mix).draw(opponent_number)
        self._rng.seed(bot_seed)
        if self._opponent.player is not None:
            self._generator = np.random.default_rng(player_seed)
        decks = (deck, opponent_deck) if self._seat == 0 else (opponent_deck, deck)
        self._duel = duel = self._start_duel(decks, duel_seed)
        self._steps, self._is_over = 0, False
        self._potential = self._shaping_potential(duel)
        info = {"opponent": self._opponent.name, "seat": self._seat, "deck": deck, "opponent_deck": opponent_deck}
        return self._observe(duel, self._seat), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play a legal action, then let the opponent play up to the agent's next decision."""
        duel = self._duel
        if duel is None or self._is_over:
            raise gym.error.ResetNeeded("no duel is in progress; call reset() before step()")
        legal_actions = duel.legal()
        index = int(action)
        if not 0 <= index < len(legal_actions):
            raise ValueError(
                f"action {index} is not legal: there are {len(legal_actions)} now, from 0 to "
                f"{len(legal_actions) - 1}; choose one that action_masks() allows"
            )
        duel.apply(legal_actions[index])
        self._let_opponent_play(duel)
        self._steps += 1
        winner = duel.winner
        terminated = winner is not None
        truncated = not terminated and self._steps >= self.max_steps
        reward = 0.0
        if terminated and winner != 2:
            reward = 1.0 if winner == self._seat else -1.0
        if self.shaping:
            potential = 0.0 if terminated else self._shaping_potential(duel)
            shaped = reward + self.gamma * potential - self._potential
            self._potential = potential
        else:
            shaped = reward
        info: dict[str, Any] = {}
        if terminated or truncated:
            self._is_over = True
            info = {"turns": duel.turn, "won": (1.0 + reward) / 2}
        return self._observe(duel, self._seat), shaped, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal: the first n of them; none after the end of a duel."""
        return self._mask(self._current_duel())

    def advise(self, name: str) -> int:
        """Return the action that the bot with this name would play in the agent's place; the env does not change."""
        duel = self._current_duel()
        if self._is_over:
            raise gym.error.ResetNeeded("the duel is over, so there is no action to advise; call reset()")
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        return duel.legal().index(make_bot(name).choose(duel, rng))

    def render(self) -> str | None:
        """Return what the agent sees as text, with the log since the last call and the legal actions."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode: make the env with render_mode='ansi'")
            return None
        duel = self._current_duel()
        log_lines, duel.log = duel.log or [], []
        return render_text(duel, self._seat, log_lines)

    # ---- states ------------------------------------------------------------------------------------------------

    def get_state(self) -> bytes | None:
        """Return everything that determines how the env continues, except an opponent that is not a bot.

        Returns None if such an opponent is recurrent, because its state cannot be saved.
        """
        duel = self._current_duel()
        opponent = self._opponent
        if opponent.is_recurrent:
            return None
        version, mt_state, gauss = self._rng.getstate()
        fields = {
            "seat": self._seat,
            "steps": self._steps,
            "over": self._is_over,
            "opponent": opponent.name if opponent.bot is not None else None,
            "np_random": self.np_random.bit_generator.state,
            "generator": None if opponent.player is None else self._generator.bit_generator.state,
            "rng": [version, gauss],
        }
        text, packed = json.dumps(fields).encode(), _RANDOM_STATE.pack(*mt_state)
        return _HEADER.pack(_MAGIC, len(text), len(packed)) + text + packed + duel.get_state()

    def set_state(self, state: bytes) -> None:
        """Restore what ``get_state`` of an env with the same settings returned.

        If the state was saved with an opponent that is not a bot, this env's present opponent stays.
        """
        try:
            magic, n_text, n_packed = _HEADER.unpack_from(state)
            if magic != _MAGIC:
                raise ValueError(f"it does not begin with {_MAGIC!r}")
            packed_start, duel_start = _HEADER.size + n_text, _HEADER.size + n_text + n_packed
            fields = json.loads(state[_HEADER.size : packed_start])
            duel = Duel.from_state(state[duel_start:])
            mt_state = _RANDOM_STATE.unpack(state[packed_start:duel_start])
            bot_name, generator_state, rng = fields["opponent"], fields["generator"], fields["rng"]
            opponent = self._opponent if bot_name is None else bot_opponent(bot_name)
            if opponent.player is None and bot_name is None:
                raise ValueError("it was saved with a Player as opponent, but the opponent of this env is a bot")
            self.np_random.bit_generator.state = fields["np_random"]
            self._rng.setstate((rng[0], mt_state, rng[1]))
            if generator_state is not None:
                self._generator.bit_generator.state = generator_state
            self._seat, self._steps, self._is_over = int(fields["seat"]), int(fields["steps"]), bool(fields["over"])
        except (struct.error, ValueError, KeyError, TypeError, UsageError) as error:
            raise ValueError(
                f"{len(state)} bytes are not a state of card-battle ({error}); pass what get_state() returned"
            ) from None
        self._opponent = opponent
        duel.log = None if self.render_mode is None else []
        self._duel = duel
        self._potential = 0.0 if duel.winner is not None else self._shaping_potential(duel)

    # ---- the duel ----------------------------------------------------------------------------------------------

    def _start_duel(self, decks: tuple[str, str], seed: int) -> Duel:
        """Return a new duel at the agent's first decision."""
        while True:
            duel = new_duel(decks, seed)
            if self.render_mode is not None:
                duel.log = []
            self._let_opponent_play(duel)
            if duel.winner is None:
                return duel
            seed += 1  # the duel ended before the agent had a decision

    def _let_opponent_play(self, duel: Duel) -> None:
        """Play the opponent's actions up to the agent's next decision or the end of the duel."""
        seat, bot, player = self._seat, self._opponent.bot, self._opponent.player
        if bot is not None:
            while duel.to_act != seat and duel.winner is None:
                duel.apply(bot.choose(duel, self._rng))
            return
        assert player is not None
        while duel.to_act != seat and duel.winner is None:
            legal_actions = duel.legal()
            index = int(player(self._observe(duel, 1 - seat), self._mask(duel), self._generator))
            if not 0 <= index < len(legal_actions):
                raise ValueError(
                    f"the opponent {self._opponent.name} chose action {index}, but only 0 to {len(legal_actions) - 1} "
                    "are legal; it has to choose an action that the mask allows"
                )
            duel.apply(legal_actions[index])

    def _observe(self, duel: Duel, seat: int) -> Any:
        if self.action_features:
            return {"observation": observe(duel, seat), "action_features": describe_actions(duel)}
        return observe(duel, seat)

    def _mask(self, duel: Duel) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = _MASKS[len(duel.legal())].copy()
        return mask

    def _shaping_potential(self, duel: Duel) -> float:
        """Return the potential p(s) of reward shaping, from public facts only: at most half of ``shaping``."""
        return 0.5 * self.shaping * lead(duel, self._seat) if self.shaping else 0.0

    def _current_duel(self) -> Duel:
        if self._duel is None:
            raise gym.error.ResetNeeded("no duel has been started; call reset() first")
        return self._duel


def make(action_features: bool = True, **kwargs: Any) -> CardBattle:
    """Return the env registered as ``card-battle``: ``CardBattle``, by default with action features."""
    return CardBattle(action_features=action_features, **kwargs)


def _checked_options(options: dict[str, Any] | None) -> dict[str, Any]:
    """Return the reset options with parsed values; raise ``UsageError`` for an unknown option or a wrong value."""
    checked = {}
    for name, value in (options or {}).items():
        if name not in _OPTIONS:
            raise UsageError(
                f"unknown reset option {name!r}{did_you_mean(str(name), _OPTIONS)}; card-battle takes "
                f"{', '.join(_OPTIONS)}"
            )
        checked[name] = _OPTIONS[name](value)
    return checked


def _checked_deck(name: Any) -> str:
    if name == RANDOM_DECK or name in DECK_NAMES:
        return str(name)
    raise UsageError(
        f"unknown deck {name!r}{did_you_mean(str(name), DECK_NAMES)}; there are: {', '.join(DECK_NAMES)}, or random"
    )


def _checked_seat(seat: Any) -> int | None:
    if seat is None or seat in (0, 1):
        return None if seat is None else int(seat)
    raise UsageError(f"seat {seat!r} should be 0 (first turn), 1 (second turn), or None for either at random")


def _drawn_deck(name: str, number: float) -> str:
    """Return the deck's name; if it is ``random``, the deck that ``number``, from 0 to 1, selects."""
    return DECK_NAMES[int(number * len(DECK_NAMES))] if name == RANDOM_DECK else name


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "opponent": OpponentMix,
    "seat": _checked_seat,
    "deck": _checked_deck,
    "opponent_deck": _checked_deck,
}
"""The reset options, each with the function that checks and parses its value."""
