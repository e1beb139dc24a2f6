"""How one-shot trainers call the options of the core: arguments of the trainer, and of its `fit`."""

from treadle.spec import Names, Refused, options_of

OWN = {
    "num_epochs": "num_epochs",
    "per_device_batch_size": "batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "clip_norm": "grad_clip",
    "log_every": "log_frequency",
}
"""What of a training the trainer is built with, under a name of its own; all else keeps its name."""
NAMES: Names = {name: OWN.get(name, name) for name in (*options_of("trainer"), *options_of("train"))}
PARTS: Names = {
    "model": "model",
    "loss_func": "loss",
    "optimizer": "optimizer",
    "callbacks": "callbacks",
    "run_history": "run_history",
    "metrics": "metrics",
    "train_dataset": "dataset",
    "eval_dataset": "validation_dataset",
    "max_num_train_steps": "max_steps",
    "create_scheduler_fn": "scheduler",
    "train_dataloader_kwargs": "loader_options",
    "eval_dataloader_kwargs": "eval_dataloader_kwargs",
    "reset_run_history": "reset_run_history",
    "collate_fn": Refused("both data have one loader each, and take it there: loader_options={'collate_fn': ...}"),
}
"""The same for the arguments of the core's trainer that are no options."""
