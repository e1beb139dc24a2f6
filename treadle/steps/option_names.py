"""How the trainer of models with steps of their own calls the options of the core: by their names, as arguments."""

from treadle.spec import Names, Refused, options_of

MODELS = "the model says it, in what configure_optimizers returns: {'lr_scheduler': {'scheduler': ..., "
NAMES: Names = {
    **{name: name for name in (*options_of("trainer"), *options_of("train"))},
    "scheduler_interval": Refused(f"{MODELS}'interval': 'step'}}}}"),
    "scheduler_metric": Refused(f"{MODELS}'monitor': 'val_loss'}}}}"),
    "resume": "fit(resume)",
}
PARTS: Names = {
    "model": "fit(model)",
    "loss_func": Refused("the model has its loss in training_step"),
    "optimizer": Refused("the model makes it, in configure_optimizers"),
    "callbacks": "callbacks",
    "run_history": "run_history",
    "metrics": "metrics",
    "train_dataset": "fit(train_dataloaders)",
    "eval_dataset": "fit(val_dataloaders)",
    "max_num_train_steps": "max_steps",
    "create_scheduler_fn": Refused("the model makes it, in configure_optimizers"),
    "train_dataloader_kwargs": Refused("loaders are given to fit ready-made"),
    "eval_dataloader_kwargs": Refused("loaders are given to fit ready-made"),
    "reset_run_history": Refused("each fit has a history of its own"),
    "collate_fn": Refused("loaders are given to fit ready-made"),
}
"""The same for the arguments of the core's trainer that are no options."""
