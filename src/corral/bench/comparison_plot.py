"""Draws ``comparison.png``: two runs over time in four panels."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corral.storage.run_record import FPS, LOSS, REWARD, STEPS, Curve, RunRecord

__all__ = ["draw_comparison"]

_COLOURS = ("#3b6fb6", "#e07b28")
_UNITS = ((1800.0, 3600.0, "hours"), (90.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""Units of the time axis: from how many seconds on it is used, its seconds, its name."""


def draw_comparison(path: Path, title: str, runs: Sequence[tuple[str, RunRecord]]) -> None:
    """Draw the runs, each with its label, and save the picture.

    ``Figure`` is used without pyplot, so this needs no screen and leaves matplotlib's global settings alone.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    longest = max(run.seconds or 0.0 for _, run in runs)
    unit, unit_name = next((seconds, name) for at_least, seconds, name in _UNITS if longest >= at_least)
    figure = Figure(figsize=(11, 7.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    ((rewards, speeds), (losses, steps)) = figure.subplots(2, 2)
    panels: list[tuple[Any, str, str]] = [
        (rewards, "Episode reward", "mean of the last 100 episodes"),
        (speeds, "FPS", "steps per second (thick: average so far)"),
        (losses, "Loss", "mean of each update (thick: smoothed)"),
        (steps, "Total steps", "all envs together"),
    ]
    for colour, (label, run) in zip(_COLOURS, runs, strict=True):
        label, loss = _without_formulas(label), run.curve(LOSS)
        _line(rewards, run.curve(REWARD), unit, colour, label)
        _line(speeds, run.speed_curve, unit, colour, faint=True)
        _line(speeds, run.curve(FPS), unit, colour, label)
        _line(losses, loss, unit, colour, faint=True)
        _line(losses, _smooth(loss), unit, colour, label)
        _line(steps, run.curve(STEPS), unit, colour, label)
    for panel, title_of_panel, meaning in panels:
        panel.set_title(title_of_panel, loc="left", fontweight="bold")
        panel.set(xlabel=f"{unit_name} of training", ylabel=meaning)
        panel.set_xlim(0, max(longest, 1e-9) / unit * 1.02)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if not panel.has_data():
            panel.text(0.5, 0.5, "nothing recorded", ha="center", va="center", transform=panel.transAxes, color="grey")
            panel.set_yticks([])
    speeds.yaxis.set_major_formatter("{x:,.0f}")
    steps.yaxis.set_major_formatter(EngFormatter())  # 2 M, not 2,000,000
    for panel in (speeds, steps):
        panel.set_ylim(bottom=0)
    handles, labels = steps.get_legend_handles_labels()
    figure.suptitle(textwrap.fill(_without_formulas(title), 100), fontsize=13)
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110)


def _line(panel: Any, curve: Curve, unit: float, colour: str, label: str | None = None, faint: bool = False) -> None:
    if not curve.seconds:
        return
    style = {"linewidth": 0.8, "alpha": 0.4} if faint else {"linewidth": 1.8}
    marker = "o" if len(curve.seconds) < 15 and not faint else None  # a line with one point would not be visible
    times = [second / unit for second in curve.seconds]
    panel.plot(times, curve.values, color=colour, label=label, marker=marker, markersize=3.5, **style)


def _smooth(curve: Curve) -> Curve:
    """Return the running mean over a fiftieth of the curve."""
    window = max(1, len(curve.values) // 50)
    sums = np.cumsum([0.0, *curve.values])
    ends = np.arange(1, len(sums))
    starts = np.maximum(0, ends - window)
    return Curve(curve.seconds, list((sums[ends] - sums[starts]) / (ends - starts)))


def _without_formulas(text: str) -> str:
    """Return the text with dollar signs escaped, between which matplotlib would read formulas."""
    return text.replace("$", r"\$")
