"""What is said of a run before its first epoch: at most six lines."""

from typing import Any

from treadle.console.lines import counted
from treadle.execution import AutoExecution, Execution
from treadle.loop.interfaces import RunningTrainer
from treadle.runs.description import count_parameters
from treadle.runs.place import run_address


def describe_run(trainer: RunningTrainer) -> list[str]:
    """Return the head of a run: its model, its data, its length, on what and how it runs, and its folder."""
    told = {
        "model": f"{type(trainer.get_model(keep_torch_compile=False)).__name__}, {split_parameters(trainer)}",
        "data": _data(trainer),
        "train": _length(trainer),
        "run on": _machine(trainer),
        "folder": "" if trainer.run_dir is None else run_address(trainer.run_dir),
    }
    return [f"{name:<6}  {value}" for name, value in told.items() if value]


def split_parameters(trainer: RunningTrainer) -> str:
    """Return how many numbers the optimizers of a trainer learn, and how many stay as they are."""
    trained, frozen = count_parameters(trainer.model, trainer.optimizers().values())
    return counted(trained, "parameter") + (f" trained, {frozen:,} frozen" if frozen else "")


def _data(trainer: RunningTrainer) -> str:
    data, config = trainer.this_run.data, trainer.run_config
    trained = _amount(data.training, data.train_dataset)
    evaluated = "" if data.evaluation is None else _amount(data.evaluation, data.eval_dataset)
    parts = [trained and f"{trained} to train on", evaluated and f"{evaluated} to evaluate on"]
    if config is not None and config.train_total_batch_size:
        processes, pieces = config.num_processes, config.gradient_accumulation_steps
        factors = [counted(processes, "process")] * (processes > 1) + [counted(pieces, "micro-batch")] * (pieces > 1)
        cut = f" ({' x '.join([*factors, str(config.train_per_device_batch_size)])})" if factors else ""
        parts.append(f"batches of {config.train_total_batch_size:,}{cut}")
    return ", ".join(part for part in parts if part)


def _amount(stream: Any, dataset: Any) -> str:
    """Return how many samples there are, or batches if only these are known, or nothing."""
    known = getattr(stream, "dataset", None)
    try:
        return counted(len(dataset if known is None else known), "sample")
    except TypeError:
        length = getattr(stream, "length", None)
        return "" if length is None else counted(length, "batch")


def _length(trainer: RunningTrainer) -> str:
    config = trainer.run_config
    if config is None:
        return ""
    epochs, each, limit = config.num_epochs, config.num_update_steps_per_epoch, config.max_num_train_steps
    parts = []
    if epochs is not None:
        parts.append(counted(epochs, "epoch") + (f" of {counted(each, 'step')}" if each else ""))
    if limit is not None and (epochs is None or each is None or limit != epochs * each):
        parts.append(("at most " if parts else "") + counted(limit, "step"))
    return ", ".join(parts)


def _machine(trainer: RunningTrainer) -> str:
    run, processes = trainer.this_run, trainer.processes
    asked, used = run.spec.execution, type(run.execution)
    # What "auto" chooses is known after the first steps; where there is no choice, or hardly any, it is eager.
    is_eager = used is Execution or (isinstance(run.execution, AutoExecution) and run.execution.only_compiles)
    how = "eager" if asked == "auto" and is_eager else used.__name__ if callable(asked) else str(asked)
    if run.spec.compile is not None and how != "compile":
        how += ", compiled"
    parts = [str(trainer.device), how, trainer.precision.kind]
    if processes.distributed:
        parts.insert(1, f"{counted(processes.size, 'process')} ({trainer.parallel.describe()})")
    return ", ".join(parts)
