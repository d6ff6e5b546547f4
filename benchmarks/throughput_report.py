"""The report of ``throughput.py``: tables, claims and a picture, from nothing but what is in its json."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Metric:
    """How a number is written, and which way is better."""

    name: str
    unit: str
    digits: int
    more_is_better: bool


METRICS = {
    "steps_per_s": Metric("steps per second", "steps/s", 0, True),
    "collect_steps_per_s": Metric("steps per second of collecting", "steps/s", 0, True),
    "start_s": Metric("seconds to start", "s", 2, False),
    "worker_mb": Metric("MB of a worker's own (USS)", "MB", 1, False),
    "seconds_to_reward": Metric("seconds to a mean reward of 475", "s", 1, False),
    "steps_to_reward": Metric("steps to a mean reward of 475", "steps", 0, False),
}
LABELS = {
    "corral": "Corral",
    "corral-serial": "Corral, `backend=serial`",
    "sb3-dummy": "SB3, DummyVecEnv",
    "sb3-subproc": "SB3, SubprocVecEnv",
    "bare": "bare stepping on every core",
    "gymnasium-async": "Gymnasium, AsyncVectorEnv",
    "gymnasium-sync": "Gymnasium, SyncVectorEnv",
    "corral-8": "Corral, 8 envs",
    "corral-64": "Corral, 64 envs",
    "corral-envpool": "Corral, `envpool:Pong-v5`",
    "corral-ale": "Corral, `ALE/Pong-v5`",
    "gym-8": "Gymnasium's, 8 envs",
    "envpool-8": "EnvPool's, 8 envs",
    "gym-64": "Gymnasium's, 64 envs",
    "envpool-64": "EnvPool's, 64 envs",
    "gym-256": "Gymnasium's, 256 envs",
    "envpool-256": "EnvPool's, 256 envs",
}
COLOURS = {
    "corral": "#2f6db5",
    "corral-serial": "#8fb4dd",
    "envpool": "#2f6db5",
    "gym": "#8fb4dd",
    "sb3": "#e08a3c",
    "gymnasium": "#8a9a5b",
    "bare": "#777777",
}
NOT_REACHED = math.inf
"""What stands for None: seconds until something that did not happen."""


@dataclass(frozen=True, slots=True)
class Claim:
    """``mine`` should be ``at_least`` times better than ``other``, or itself stay below a limit."""

    text: str
    section: str
    metric: str = "steps_per_s"
    mine: str = "corral"
    other: str | None = None
    """A competitor; ``sb3`` is the better one of Stable-Baselines3's."""
    at_least: float = 1.0
    aim: float | None = None
    below: float | None = None


CLAIMS = (
    Claim("CartPole, 8 envs: at least 3 × the better SB3", "cartpole-8", other="sb3", at_least=3, aim=5),
    Claim("CartPole, 32 envs: at least 5 × the better SB3", "cartpole-32", other="sb3", at_least=5, aim=8),
    Claim("0.8 ms of work: at least 90% of bare stepping", "work-0.8ms", other="bare", at_least=0.9),
    Claim("0.8 ms of work: at least 1.8 × the better SB3", "work-0.8ms", other="sb3", at_least=1.8),
    Claim("work that varies: at least 80% of bare stepping", "work-varied", other="bare", at_least=0.8),
    Claim("masks: at least 3 × the better MaskablePPO", "masked", other="sb3", at_least=3),
    Claim("stepping alone: at least 3 × SubprocVecEnv", "vec-only", other="sb3-subproc", at_least=3),
    Claim("stepping alone: at least 2 × AsyncVectorEnv", "vec-only", other="gymnasium-async", at_least=2),
    Claim("one more worker: less than 40 MB of its own", "start", "worker_mb", below=40),
    Claim("8 workers start in less than 2 s", "start", "start_s", below=2),
    Claim(
        "collecting with 64 envs not slower than with 8",
        "collect-8-vs-64",
        "collect_steps_per_s",
        mine="corral-64",
        other="corral-8",
    ),
    Claim(
        "Pong, Nature network: at least 1.3 × the better SB3", "pong", mine="corral-envpool", other="sb3", at_least=1.3
    ),
    Claim(
        "collecting with 256 CartPole envs: EnvPool's at least 2 × Gymnasium's",
        "envpool-cartpole",
        "collect_steps_per_s",
        mine="envpool-256",
        other="gym-256",
        at_least=2,
    ),
    Claim("PPO on 64 CartPole envs: EnvPool's not slower", "envpool-cartpole", mine="envpool-64", other="gym-64"),
    Claim(
        "CartPole to 475 in at most a third of SB3's time", "wall-clock", "seconds_to_reward", other="sb3", at_least=3
    ),
)

INTRODUCTION = """\
Speed, start-up time and memory of Corral, Stable-Baselines3 (SB3) and Gymnasium's vector envs. The notes at the
end say how this was measured. The first table has the speeds that the project requires, and those that it aims at.
The *better SB3* is the faster one of `DummyVecEnv` and `SubprocVecEnv`. *Bare stepping* steps the envs in one
process for each core, without policy and learning."""

NOTES = """\
## How this was measured

- Each value is one run in a new process. The competitors of a section take turns. A table shows the median, the
  smallest and the largest value. A requirement is checked with the ratio of the medians; the ratios in brackets
  are the smallest and the largest within one round.
- Steps per second are measured in wall-clock time, learning included, over whole iterations. The first
  iteration is a warm-up and does not count. Importing, starting workers and Corral's measurement of the env for
  `backend=auto` come before it.
- PPO: n_steps 128, 4 epochs, 4 minibatches, separate 64 × 64 tanh networks for policy and value, device cpu.
  All other settings are the defaults of the libraries, which agree. Corral computes this network in numpy, with
  one thread in each process, and its workers compute parts of the gradients. SB3 computes it in torch: with
  torch's default number of threads if that was more than 5% faster in short trials, otherwise with one thread.
- All competitors step the same envs, made without Gymnasium's passive checker. In training, SB3 has its usual
  `Monitor` around each env. Corral writes its metrics to files in every iteration, and SB3 writes nothing.
  TensorBoard, evaluation and checkpoints are off in both.
- Both libraries take the same number of gradient steps on minibatches of the same size. Whether they learn
  equally well from them is measured in [sample_efficiency.md](sample_efficiency.md).
- `toy-work` only uses processor time, so it shows how well the cores are used and nothing else. Bare stepping
  is one process per core that steps its part of the envs with random actions, without policy, learning or
  messages. No trainer can be faster.
- `vec-only`: every vector env is called through its own `step`, without `Monitor`. By default, Gymnasium's
  vector envs do not step an env in the call that resets it, but here this call counts as a step. Where a step
  takes microseconds, envs in one process (DummyVecEnv, SyncVectorEnv) are faster than all worker processes,
  because messages cost more than steps.
- `start`: a worker's own memory (USS) is the memory that would be freed if the worker ended. AsyncVectorEnv
  forks the parent process where that is Python's default. This starts faster and shares the parent's memory.
  The workers of Corral and SB3 are started by a fork server, which is safe with threads. SB3's time includes
  importing torch in each worker.
- `pong`: all competitors use the usual Atari preprocessing, each with its own implementation (EnvPool's is in
  C++), no sticky actions, and the same network with 512 features. SB3 uses `CnnPolicy` on `PongNoFrameskip-v4`.
  Corral computes this network in torch too.
- `wall-clock`: both use the settings of rl-zoo3, except that the clip range stays at 0.2, since Corral has no
  schedule for it. The time counts from the first step. Evaluation is left out, but Corral's saving of its best
  policies is included. SB3 uses DummyVecEnv, which is its faster option on CartPole. Seeds differ by chance, so
  a few of them say little about small differences.
"""


def values(section: dict[str, Any], competitor: str, metric: str) -> list[float]:
    """What a competitor measured, by repeat."""
    measured = [run[metric] for run in section["runs"] if run["competitor"] == competitor]
    return [NOT_REACHED if value is None else value for value in measured]


def median(section: dict[str, Any], competitor: str, metric: str) -> float:
    return statistics.median(values(section, competitor, metric))


def competitors(section: dict[str, Any]) -> list[str]:
    """Those that were measured, in the order of the table."""
    ran = {run["competitor"] for run in section["runs"]}
    return [name for name in section["jobs"] if name in ran]


def best_sb3(section: dict[str, Any], metric: str) -> str | None:
    names = [name for name in competitors(section) if name.startswith("sb3-")]
    better = max if METRICS[metric].more_is_better else min
    return better(names, key=lambda name: median(section, name, metric), default=None)


def times_better(mine: float, other: float, metric: str) -> float:
    """By which factor ``mine`` is better; below 1 it is worse."""
    if not METRICS[metric].more_is_better:
        mine, other = other, mine
    return math.nan if math.isinf(mine) and math.isinf(other) else mine / other


def spell(value: float | None, metric: str) -> str:
    if value is None or math.isinf(value):
        return "not reached"
    return f"{value:,.{METRICS[metric].digits}f}"


def factor(ratio: float) -> str:
    return "∞" if math.isinf(ratio) else f"{ratio:.2f}"


# ---- text --------------------------------------------------------------------------------------------------------


def judge(claim: Claim, sections: Sections) -> tuple[str, str, str]:
    """What was measured, whether that meets the claim, and whether it meets the aim."""
    section = sections.get(claim.section)
    if section is None or claim.mine not in competitors(section):
        return "not measured", "", ""
    metric = claim.metric
    mine = median(section, claim.mine, metric)
    if claim.below is not None:
        return f"{spell(mine, metric)} {METRICS[metric].unit}", "yes" if mine < claim.below else "**no**", ""
    other = best_sb3(section, metric) if claim.other == "sb3" else claim.other
    if other not in competitors(section):
        return "not measured", "", ""
    ratio = times_better(mine, median(section, other, metric), metric)
    pairs = zip(values(section, claim.mine, metric), values(section, other, metric), strict=False)
    each = [times_better(*pair, metric) for pair in pairs]
    if other == "bare":
        measured = f"{ratio:.0%} ({min(each):.0%} to {max(each):.0%})"
    else:
        measured = f"{factor(ratio)} × ({factor(min(each))} to {factor(max(each))})"
    aim = "" if claim.aim is None else f"{claim.aim:g} ×: {'yes' if ratio >= claim.aim else 'no'}"
    return measured, "yes" if ratio >= claim.at_least else "**no**", aim


def claims_table(sections: Sections) -> list[str]:
    lines = ["| requirement | measured | met | aim |", "|---|---|---|---|"]
    return lines + [f"| {claim.text} | {' | '.join(judge(claim, sections))} |" for claim in CLAIMS]


def section_table(section: dict[str, Any], metric: str) -> list[str]:
    against = best_sb3(section, metric)
    limit = "bare" in competitors(section)
    heads = [METRICS[metric].name, "median", "smallest to largest"]
    heads += ["times better than the better SB3"] * (against is not None) + ["share of bare"] * limit
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name in competitors(section):
        measured, middle = values(section, name, metric), median(section, name, metric)
        cells = [
            LABELS[name],
            spell(middle, metric),
            f"{spell(min(measured), metric)} to {spell(max(measured), metric)}",
        ]
        if against is not None:
            cells.append(factor(times_better(middle, median(section, against, metric), metric)))
        if limit:
            cells.append(f"{middle / median(section, 'bare', metric):.0%}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def remarks(section: dict[str, Any]) -> list[str]:
    """What was chosen on the way: Corral's backend, SB3's threads; and how many seeds got there."""
    said = []
    for name in competitors(section):
        runs = [run for run in section["runs"] if run["competitor"] == name]
        if section["jobs"][name].get("backend") == "auto":
            chosen = Counter(
                f"{run['backend']}{f' with {n} workers' if (n := run['num_workers']) > 1 else ''}" for run in runs
            )
            words = ", ".join(f"{what} ({times} of {len(runs)} runs)" for what, times in chosen.items())
            said.append(f"{LABELS[name]}, `backend=auto`, chose {words}")
    for name, probe in section["threads"].items():
        used = "one thread" if probe["used"] else "torch's default"
        said.append(
            f"{LABELS[name]} used {used} (trial: {probe['one_thread']:,.0f} steps/s with one thread, "
            f"{probe['torch_default']:,.0f} with torch's default)"
        )
    return [". ".join(said) + "."] if said else []


def origins(sections: Sections) -> list[str]:
    """Where and with what the sections were measured; one paragraph if that was the same for all."""
    groups: dict[str, list[str]] = {}
    for name, section in sections.items():
        m = section["measured"]
        machine, versions = m["machine"], ", ".join(f"{what} {which}" for what, which in m["versions"].items())
        text = (
            f"`{m['command']}` on {m['date']}: repeats {m['repeats']}, {m['seconds']:g} s each. {machine['cpu']}, "
            f"{machine['cores']} cores, {machine['ram_gb']} GB, {machine['os']}; {versions}."
        )
        groups.setdefault(text, []).append(name)
    lines = []
    for text, names in groups.items():
        lines += [text if len(groups) == 1 else f"{', '.join(names)}: {text}", ""]
    busy = [run["busy_before_percent"] for section in sections.values() for run in section["runs"]]
    lines += [
        f"Directly before the runs, other programs used {statistics.median(busy):.0f}% of the machine's cores "
        f"(median; at most {max(busy):.0f}%)."
    ]
    return lines


def report_text(sections: Sections) -> str:
    lines = ["# Throughput", "", INTRODUCTION, "", *origins(sections), "", *claims_table(sections), ""]
    lines += ["![Throughput](throughput.png)", ""]
    for name, section in sections.items():
        lines += [f"## {name}", "", f"{section['work'][0].upper()}{section['work'][1:]}.", ""]
        for metric in section["metrics"]:
            lines += [*section_table(section, metric), ""]
        if said := remarks(section):
            lines += [*said, ""]
    return "\n".join([*lines, NOTES])


# ---- picture -----------------------------------------------------------------------------------------------------


def draw(sections: Sections, path: Path) -> None:
    """A panel of bars for every table: medians, with a line from the smallest to the largest value."""
    from matplotlib.figure import Figure

    panels = [(name, section, metric) for name, section in sections.items() for metric in section["metrics"]]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.4 * columns, 2.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, (name, section, metric) in zip(axes, panels, strict=False):
        names = competitors(section)
        for y, competitor in enumerate(names):
            measured = [value for value in values(section, competitor, metric) if math.isfinite(value)]
            middle = median(section, competitor, metric)
            family = competitor if competitor in COLOURS else competitor.split("-")[0]
            if math.isfinite(middle):
                axis.barh(y, middle, color=COLOURS[family], height=0.7)
                axis.plot([min(measured), max(measured)], [y, y], color="#222222", linewidth=1.2)
            end = max(measured, default=0.0) if math.isfinite(middle) else 0.0
            axis.annotate(spell(middle, metric), (end, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axis.set_yticks(range(len(names)), [LABELS[n].replace("`", "") for n in names], fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.18)
        axis.set_xlim(left=0)
        axis.tick_params(axis="x", labelsize=7)
        better = "more" if METRICS[metric].more_is_better else "less"
        axis.set_title(f"{name}: {METRICS[metric].name} ({better} is better)", fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", alpha=0.25)
        axis.set_axisbelow(True)
    figure.savefig(path, dpi=110)


def write_report(sections: Sections, folder: Path) -> None:
    """``throughput.md`` and ``throughput.png``."""
    (folder / "throughput.md").write_text(report_text(sections), encoding="utf-8")
    draw(sections, folder / "throughput.png")
