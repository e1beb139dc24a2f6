"""How a config calls the options of the core."""

from treadle.spec import Names, Refused

NAMES: Names = {
    "seed": "train.seed",
    "run_dir": "train.output_dir",
    "precision": "train.amp.dtype",
    "loss_scaling": "train.amp.loss_scaling",
    "matmul_precision": "train.matmul_precision",
    "convolution_precision": "train.convolution_precision",
    "loss_reduction": Refused(
        "the losses of a model are means: over its samples, or over the num_items_in_batch that it returns beside them"
    ),
    "device": "train.dist.device_type",
    "checkpoints": "train.checkpointer.max_to_keep",
    "on_nonfinite": "train.on_nonfinite",
    "max_rollbacks": "train.max_rollbacks",
    "deterministic": "train.deterministic",
    "microbatch": "train.microbatch",
    "execution": "train.execution",
    "compile": "graph.enabled",
    "activation_checkpointing": "train.activation_checkpoint.modules",
    "offload_optimizer": "train.offload_optimizer",
    "timeout": "train.dist.timeout",
    "parallel": "train.dist.tensor_parallel_size",
    "num_epochs": "train.train_epoch",
    "max_steps": "train.train_iter",
    "per_device_batch_size": "train.train_micro_batch_size",
    "gradient_accumulation_steps": "train.num_accumulation_steps",
    "gradient_clip_value": "train.gradient_clip_value",
    "clip_norm": "optim.params.clip_grad_max_norm",
    "scheduler_interval": Refused("a run is counted in iterations, and a schedule moves with each"),
    "scheduler_metric": Refused("a schedule moves with each iteration; a hook of your own can move one by a metric"),
    "eval_every": "train.evaluation.eval_period",
    "log_every": "train.log_period",
    "save_every": "train.checkpointer.period",
    "resume_from": Refused("a run goes on from its own folder, by train.resume; train.load_weight takes weights alone"),
    "resume": "train.resume",
    "extend": Refused("a schedule is set up for train.train_iter each time a run starts, and follows the new length"),
    "lr_scaling": "train.lr_scaling.rule",
}
"""The key of each option; precision, plans and checkpoints have further keys beside it."""
PARTS: Names = {
    "model": "model",
    "loss_func": Refused("the model returns its losses"),
    "optimizer": "optim",
    "callbacks": "train.callbacks",
    "run_history": Refused("the storage of the run is kept, which saves its metrics with it"),
    "metrics": "train.evaluation.evaluator",
    "train_dataset": "dataloader.train",
    "eval_dataset": "dataloader.test",
    "max_num_train_steps": "train.train_iter",
    "create_scheduler_fn": "train.scheduler",
    "train_dataloader_kwargs": "dataloader.train",
    "eval_dataloader_kwargs": "dataloader.test",
    "reset_run_history": Refused("each start of a run goes on with the metrics in its folder"),
    "collate_fn": "dataloader.train",
}
"""The same for the arguments of the core's trainer that are no options."""
