"""Card battle as a Gymnasium env: the agent's decisions are its steps, and somebody plays the other side."""

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
from corral_games.card_battle.bots.seating import Seating, seat_bot
from corral_games.card_battle.engine.decks import DECK_NAMES, RANDOM_DECK
from corral_games.card_battle.engine.options import MAX_OPTIONS
from corral_games.card_battle.engine.rules import Duel, new_duel
from corral_games.card_battle.features.action_features import ACTION_FEATURES, describe_actions
from corral_games.card_battle.features.features import FEATURES, HIGH, LOW, lead, observe
from corral_games.card_battle.render import draw_table

__all__ = ["CardBattle", "make"]

_MASKS = np.tri(MAX_OPTIONS + 1, MAX_OPTIONS, -1, dtype=np.bool_)  # row n: the first n actions
_LENGTHS = struct.Struct("<4sII")
_WORDS = struct.Struct("<625I")
_MAGIC = b"CB01"


class CardBattle(gym.Env[Any, Any]):
    """A duel against an opponent: win by bringing its life from 20 to 0. Reward: 1 for a win, -1 for a loss.

    An action is an index into the list of legal actions, which ``action_masks`` counts and ``render`` shows. The
    observation is what one side sees (``features.FEATURES``); with ``action_features`` it is a Dict that also tells
    what each legal action is (``action_rows.ACTION_FEATURES``).

    ``opponent``: one of ``opponents``; a mix of them, as ``mixed:random=1,greedy=3``, drawn for each episode; a
    ``corral.envs.opponent_protocol.Player``; or an object with a ``predict`` like Stable-Baselines3's. ``deck`` and
    ``opponent_deck``: one of ``decks.DECK_NAMES`` or ``random``. ``seat``: 0 begins, 1 does not; None: by chance.
    Each can be given for one episode as a reset option. ``shaping`` (0 to 1) adds ``gamma * p(s') - p(s)`` to the
    rewards, where p is at most half of it: who leads in life and on the board. It changes no best play. ``won`` in the
    last step's info is 1, 0, or 0.5 for a draw or an episode cut off after ``max_steps``.
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
        self._seating = Seating(opponent)
        self._decks = (_checked_deck(deck), _checked_deck(opponent_deck))
        self._given_seat = _checked_seat(seat)
        self.shaping, self.gamma, self.max_steps = float(shaping), float(gamma), int(max_steps)
        self.action_features = bool(action_features)
        self.render_mode = render_mode
        seen = spaces.Box(LOW, HIGH, (len(FEATURES),), np.float32)
        told = spaces.Box(LOW, HIGH, (MAX_OPTIONS, len(ACTION_FEATURES)), np.float16)
        self.observation_space: spaces.Space[Any] = (
            spaces.Dict({"observation": seen, "action_features": told}) if self.action_features else seen
        )
        self.action_space = spaces.Discrete(MAX_OPTIONS)
        self._duel: Duel | None = None
        self._seated = self._seating.draw(0.0)
        self._seat = self._steps = 0
        self._over = True
        self._potential = 0.0
        self._rng = random.Random(0)
        self._generator = np.random.default_rng(0)

    # ---- Gymnasium ---------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a duel, and go to the agent's first decision. Options: opponent, seat, deck, opponent_deck."""
        asked = _checked_options(options)
        super().reset(seed=seed)
        # The same numbers are drawn whatever is asked for, so that an option changes only what it is about.
        seat, *chairs, opponent = self.np_random.random(4).tolist()  # decks belong to chairs: seats swapped, decks too
        seeds = self.np_random.integers(1 << 31, size=3).tolist()
        given = asked.get("seat", self._given_seat)
        self._seat = int(2 * seat) if given is None else given
        own = _drawn_deck(asked.get("deck", self._decks[0]), chairs[self._seat])
        other = _drawn_deck(asked.get("opponent_deck", self._decks[1]), chairs[1 - self._seat])
        self._seated = asked.get("opponent", self._seating).draw(opponent)
        self._rng.seed(seeds[1])
        if self._seated.player is not None:
            self._generator = np.random.default_rng(seeds[2])
        decks = (own, other) if self._seat == 0 else (other, own)
        self._duel = duel = self._begin(decks, seeds[0])
        self._steps, self._over = 0, False
        self._potential = self._rate(duel)
        info = {"opponent": self._seated.name, "seat": self._seat, "deck": own, "opponent_deck": other}
        return self._observe(duel, self._seat), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play a legal action, then let the opponent play until the agent is to choose again."""
        duel = self._duel
        if duel is None or self._over:
            raise gym.error.ResetNeeded("there is no duel going on; call reset() before step()")
        choices = duel.legal()
        index = int(action)
        if not 0 <= index < len(choices):
            raise ValueError(
                f"action {index} is not legal: there are {len(choices)} now, from 0 to {len(choices) - 1}; "
                "choose one that action_masks() allows"
            )
        duel.apply(choices[index])
        self._let_opponent_play(duel)
        self._steps += 1
        winner = duel.winner
        terminated = winner is not None
        truncated = not terminated and self._steps >= self.max_steps
        reward = 0.0
        if terminated and winner != 2:
            reward = 1.0 if winner == self._seat else -1.0
        if self.shaping:
            potential = 0.0 if terminated else self._rate(duel)
            shaped = reward + self.gamma * potential - self._potential
            self._potential = potential
        else:
            shaped = reward
        info: dict[str, Any] = {}
        if terminated or truncated:
            self._over = True
            info = {"turns": duel.turn, "won": (1.0 + reward) / 2}
        return self._observe(duel, self._seat), shaped, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which indices are legal now: the first ones; none after the end of a duel."""
        return self._mask(self._going_on())

    def advise(self, name: str) -> int:
        """What the scripted player of that name would do in the agent's place now; asking changes nothing."""
        duel = self._going_on()
        if self._over:
            raise gym.error.ResetNeeded("the duel is over: there is nothing to advise on; call reset()")
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        return duel.legal().index(make_bot(name).choose(duel, rng))

    def render(self) -> str | None:
        """The table as the agent sees it, with what has happened since the last look, and its choices."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode: make the env with render_mode='ansi'")
            return None
        duel = self._going_on()
        news, duel.log = duel.log or [], []
        return draw_table(duel, self._seat, news)

    # ---- states ------------------------------------------------------------------------------------------------

    def get_state(self) -> bytes | None:
        """Everything that decides how the env goes on, as plain data; of an opponent that was given, nothing.

        None if such an opponent plays by what it remembers, which nobody else can tell.
        """
        duel = self._going_on()
        if self._seated.is_recurrent:
            return None
        version, words, gauss = self._rng.getstate()
        seated = self._seated
        head = {
            "seat": self._seat,
            "steps": self._steps,
            "over": self._over,
            "opponent": seated.name if seated.bot is not None else None,
            "np_random": self.np_random.bit_generator.state,
            "generator": None if seated.player is None else self._generator.bit_generator.state,
            "rng": [version, gauss],
        }
        text, packed = json.dumps(head).encode(), _WORDS.pack(*words)
        return _LENGTHS.pack(_MAGIC, len(text), len(packed)) + text + packed + duel.get_state()

    def set_state(self, state: bytes) -> None:
        """Go to where an env with the same settings was. An opponent that was given stays whoever is seated."""
        try:
            magic, n_text, n_packed = _LENGTHS.unpack_from(state)
            if magic != _MAGIC:
                raise ValueError("it begins with other bytes")
            text, packed, rest = _split(state[_LENGTHS.size :], n_text, n_packed)
            head = json.loads(text)
            duel = Duel.from_state(rest)
            words = _WORDS.unpack(packed)
            opponent, generator, rng = head["opponent"], head["generator"], head["rng"]
            seated = self._seated if opponent is None else seat_bot(opponent)
            if seated.player is None and opponent is None:
                raise ValueError("it was saved with a player of its own as opponent, and here sits none")
            self.np_random.bit_generator.state = head["np_random"]
            self._rng.setstate((rng[0], words, rng[1]))
            if generator is not None:
                self._generator.bit_generator.state = generator
            self._seat, self._steps, self._over = int(head["seat"]), int(head["steps"]), bool(head["over"])
        except (struct.error, ValueError, KeyError, TypeError, UsageError) as error:
            raise ValueError(
                f"{len(state)} bytes are no state of card-battle ({error}); give what get_state() returned"
            ) from None
        self._seated = seated
        duel.log = None if self.render_mode is None else []
        self._duel = duel
        self._potential = 0.0 if duel.winner is not None else self._rate(duel)

    # ---- the duel ----------------------------------------------------------------------------------------------

    def _begin(self, decks: tuple[str, str], seed: int) -> Duel:
        """A duel at the agent's first decision."""
        while True:
            duel = new_duel(decks, seed)
            if self.render_mode is not None:
                duel.log = []
            self._let_opponent_play(duel)
            if duel.winner is None:
                return duel
            seed += 1  # it was over before the agent had anything to decide

    def _let_opponent_play(self, duel: Duel) -> None:
        """Play the other side until the agent is to choose, or the end."""
        seat, bot, player = self._seat, self._seated.bot, self._seated.player
        if bot is not None:
            while duel.to_act != seat and duel.winner is None:
                duel.apply(bot.choose(duel, self._rng))
            return
        assert player is not None
        while duel.to_act != seat and duel.winner is None:
            choices = duel.legal()
            index = int(player(self._observe(duel, 1 - seat), self._mask(duel), self._generator))
            if not 0 <= index < len(choices):
                raise ValueError(
                    f"the opponent {self._seated.name} chose action {index}, but only 0 to {len(choices) - 1} are "
                    "legal; it should heed the mask that it is given"
                )
            duel.apply(choices[index])

    def _observe(self, duel: Duel, seat: int) -> Any:
        if self.action_features:
            return {"observation": observe(duel, seat), "action_features": describe_actions(duel)}
        return observe(duel, seat)

    def _mask(self, duel: Duel) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = _MASKS[len(duel.legal())].copy()
        return mask

    def _rate(self, duel: Duel) -> float:
        """The potential of a position: who leads, from what both can see, at most half of ``shaping``."""
        return 0.5 * self.shaping * lead(duel, self._seat) if self.shaping else 0.0

    def _going_on(self) -> Duel:
        if self._duel is None:
            raise gym.error.ResetNeeded("there is no duel yet; call reset() first")
        return self._duel


def make(action_features: bool = True, **kwargs: Any) -> CardBattle:
    """The env that ``card-battle`` names: ``CardBattle``, with a description of each legal action."""
    return CardBattle(action_features=action_features, **kwargs)


def _split(data: bytes, first: int, second: int) -> tuple[bytes, bytes, bytes]:
    return data[:first], data[first : first + second], data[first + second :]


def _checked_options(options: dict[str, Any] | None) -> dict[str, Any]:
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
    raise UsageError(f"seat {seat!r} should be 0 (begins), 1 (does not), or None for either by chance")


def _drawn_deck(name: str, number: float) -> str:
    return DECK_NAMES[int(number * len(DECK_NAMES))] if name == RANDOM_DECK else name


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "opponent": Seating,
    "seat": _checked_seat,
    "deck": _checked_deck,
    "opponent_deck": _checked_deck,
}
"""Options of a reset, and what checks and reads each."""
