"""The strategy of a plan, and what it cannot do."""

from collections.abc import Callable
from typing import Any

from treadle.callback import MICRO_BATCH_EVENTS
from treadle.errors import ConfigError
from treadle.memory.offload import is_elementwise
from treadle.optim.muon import is_muon
from treadle.parallel.plan import Plan, resolve_plan
from treadle.parallel.processes import Processes
from treadle.parallel.strategy import Strategy
from treadle.runs.interfaces import TrainerLike

STAGE_VERBS = ("calculate_train_batch_loss", "calculate_eval_batch_loss", "calculate_prediction")


def strategy_for(parallel: Plan | Strategy | str | Callable[[Processes], Strategy], processes: Processes) -> Strategy:
    """Return the strategy for what the argument `parallel` of a trainer says.

    Args:
        parallel: A plan, "auto", the strategy of an earlier trainer that has spread the same model already, or what
            makes a strategy of your own for the processes.
        processes: The processes, whose number the plan must fit.

    Raises:
        ConfigError: The plan is for another number of processes, or what should make a strategy makes something else.
    """
    # That of an earlier trainer knows where its pieces lie: a new one would find a model without whole weights.
    if isinstance(parallel, Strategy):
        return parallel
    if callable(parallel):
        made = parallel(processes)
        if not isinstance(made, Strategy):
            raise ConfigError(f"parallel={parallel!r} made {made!r}; return a treadle.parallel.Strategy")
        return made
    plan = resolve_plan(parallel)
    degrees = plan.degrees(processes.size)
    if not plan.is_sharded(degrees):
        return Strategy(processes, plan, degrees)
    if degrees.pipeline > 1:
        from treadle.parallel.pipeline.strategy import PipelineStrategy

        return PipelineStrategy(processes, plan, degrees)
    # Torch's modules for this take a while to import.
    from treadle.parallel.fsdp import DTensorStrategy

    return DTensorStrategy(processes, plan, degrees)


def check_trainer(trainer: TrainerLike, base: type) -> None:
    """Refuse, before anything runs, what a trainer is built with and its plan cannot do.

    Args:
        trainer: The trainer, built.
        base: The class whose loop and verbs a plan knows.

    Raises:
        ConfigError: There is something of that kind.
    """
    strategy: Strategy = trainer.parallel
    if not strategy.is_sharded:
        return
    plan = strategy.as_argument()
    for problem in (*_problems(trainer, base), *(_stage_problems(trainer, base) if strategy.is_pipeline else ())):
        raise ConfigError(f"{plan}: {problem}")


def _problems(trainer: TrainerLike, base: Any) -> list[str]:
    found: list[str] = []
    if type(trainer)._run_train_epoch is not base._run_train_epoch:
        found.append("the loop of an epoch is your own, and may do anything; leave it to the trainer")
    for name in ("_run_eval_epoch", "_run_training"):
        if getattr(type(trainer), name) is not getattr(base, name):
            found.append(f"{name} is your own, and may do anything; leave it to the trainer")
    if len(trainer.optimizers()) > 1 and getattr(type(trainer), "phases", None) is not base.phases:
        found.append(
            f"the optimizers {sorted(trainer.optimizers())} take turns in phases of your own; those of a sharded model "
            "make one update together"
        )
    for optimizer in trainer.optimizers().values():
        if not (is_elementwise(optimizer) or is_muon(optimizer)):
            kind = type(optimizer).__name__
            found.append(f"{kind} is not known to update each number by itself, and would see pieces of weights")
    for callback in trainer.callback_handler.callback_list:
        reason = getattr(callback, "needs_whole_model", "")
        if reason:
            found.append(f"{type(callback).__name__} {reason}")
    if hasattr(trainer.model, "_orig_mod"):
        found.append("the model is compiled already; pass the plain one, and compile=True to the trainer")
    if trainer.execution == "graph":
        found.append("ranks talk to each other within a step, which execution='graph' cannot record; use 'compile'")
    if any(getattr(module, "sparse", False) for module in trainer.model.modules()):
        found.append("an embedding has sparse gradients, which cannot be sharded; set sparse=False")
    return found


def _stage_problems(trainer: TrainerLike, base: Any) -> list[str]:
    """Return what stages cannot do: several micro-batches are under way at once, and no rank sees all of one."""
    found: list[str] = []
    for event in MICRO_BATCH_EVENTS:
        for callback in trainer.callback_handler.listeners(event):
            found.append(f"{type(callback).__name__} listens to {event}, and micro-batches are under way all at once")
    for verb in STAGE_VERBS:
        if getattr(type(trainer), verb) is not getattr(base, verb):
            found.append(f"{verb} is your own, but the loss is the last stage's: loss_func(outputs, targets)")
    if trainer.loss_reduction != "mean":
        found.append(f"loss_reduction={trainer.loss_reduction!r}: the stages know means only; use 'mean'")
    if trainer.is_compiled or trainer.execution in ("compile", "graph"):
        found.append("stages are carried out by torch's schedule; use execution='eager' and compile=False")
    if trainer.microbatch != "fixed":
        found.append(f"microbatch={trainer.microbatch!r}: stages cut windows themselves; use 'fixed'")
    return found
