"""The order in which the hooks of a run are called."""

from __future__ import annotations

from collections.abc import Sequence

from corral.config.schema import TrainConfig
from corral.training.hooks.callback import Callback, CallbackHook
from corral.training.hooks.checkpoints import Checkpoints
from corral.training.hooks.episode_log import EpisodeLog
from corral.training.hooks.evaluation import Evaluation, FinalEvaluation
from corral.training.hooks.fault_log import FaultLog
from corral.training.hooks.hook import Hook, HookList
from corral.training.hooks.kl_reference import KlReference
from corral.training.hooks.stage_files import StageFiles
from corral.training.hooks.stages import Stages
from corral.training.hooks.update_log import UpdateLog
from corral.training.hooks.warm_start import WarmStart
from corral.training.hooks.writers import Writers

__all__ = ["order_hooks"]


def order_hooks(config: TrainConfig, hooks: Sequence[Hook] = (), callback: Callback | None = None) -> HookList:
    """Return all hooks of a run. The user's hooks come after Evaluation, so that they see ``eval/`` metrics."""
    if config.log_episodes:
        logs: list[Hook] = [EpisodeLog(), FaultLog(), Stages(), UpdateLog()]
    else:
        logs = [FaultLog(), Stages()]
    return HookList(
        before=[WarmStart(), *logs, Evaluation()],
        users=[*hooks, *([] if callback is None else [CallbackHook(callback)])],
        after=[KlReference(), FinalEvaluation()],
        always=[Writers(), StageFiles()],
        last=[Checkpoints()],
    )
