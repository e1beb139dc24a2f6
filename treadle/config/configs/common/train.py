"""The settings of a run that is driven from a config; docs/engine.md says what each key means."""

from os import PathLike
from typing import Any, Literal

from treadle.config import LazyCall

train = {
    "output_dir": "./output",
    # One step takes global_batch_size = train_micro_batch_size * num_accumulation_steps * data_parallel_size
    # samples. What is None is worked out; what does not fit together is an error.
    "train_micro_batch_size": 32,
    "global_batch_size": None,
    "num_accumulation_steps": None,
    # The longer of the two.
    "train_iter": 10000,
    "train_epoch": 0,
    "warmup_ratio": 0,
    # "linear" or "sqrt" multiplies the rates of the optimizer by that of global_batch_size / reference_batch_size.
    "lr_scaling": {"rule": "none", "reference_batch_size": None},
    "start_iter": 0,
    "resume": False,
    "load_weight": "",
    "seed": 1234,
    "log_period": 20,
    # "eager", "compile", "graph" or "auto"; None: as graph.enabled says, and without a `graph` eager.
    "execution": None,
    # loss_scaling: arguments of treadle.precision.LossScaling, for fp16; None chooses.
    "amp": {"enabled": False, "dtype": "bf16", "loss_scaling": None},
    # "highest", "high" (TF32) or "medium"; None leaves torch as it is.
    "matmul_precision": None,
    "convolution_precision": None,
    # Keep the state of the optimizer in the memory of the host.
    "offload_optimizer": False,
    # None: transformer layers, "*Block", or what the model chooses itself.
    "activation_checkpoint": {"enabled": False, "modules": None},
    "on_nonfinite": "raise",
    "deterministic": False,
    # A list of LazyCalls of callbacks, which act before the hooks.
    "callbacks": None,
    # None: as the core trainer has them. How often a run may roll back; "auto" calculates a micro-batch in parts when
    # memory runs out; the bound of every element of the gradient, whose norm the groups of the optimizer bound.
    "max_rollbacks": None,
    "microbatch": None,
    "gradient_clip_value": None,
    # For the rates; None finds them out.
    "tokens_per_sample": None,
    "flops_per_sample": None,
    "peak_flops": None,
    "zero_optimization": {"enabled": False, "stage": 1},
    "nccl_fusion_threshold_mb": 16,
    "nccl_fusion_max_ops": 24,
    "rdma_enabled": True,
    "checkpointer": {"period": 5000, "max_to_keep": 100, "save_model_after_n_epoch": None},
    "test_micro_batch_size": 32,
    "evaluation": {
        "enabled": True,
        "evaluator": LazyCall("treadle.engine.evaluation.ClsEvaluator")(topk=(1, 5)),
        "eval_period": 5000,
        "eval_after_n_epoch": None,
        "eval_iter": 100_000,
        "eval_metric": "Acc@1",
        "eval_mode": "max",
    },
    # `optimizer`, `max_iter` and `warmup_iter` are added when the run is set up.
    "scheduler": LazyCall("treadle.schedules.warmup_lr.WarmupCosineLR")(
        warmup_factor=0.001, alpha=0.01, warmup_method="linear"
    ),
    "dist": {
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "pipeline_num_layers": None,
        "custom_pipeline_stage_id": None,
        # None: what the launcher says.
        "num_nodes": None,
        "num_gpus_per_node": None,
        "device_type": "cuda",
        # Seconds that processes wait for each other before they fail.
        "timeout": 1800,
    },
    "input_placement_device": "cuda",
}

# What a key may hold is what its default is, an instance of the same type. Here stand those whose default does not tell
# it, or that take more.
_types = {
    "output_dir": str | PathLike,
    "train_micro_batch_size": int | None,
    "global_batch_size": int | None,
    "num_accumulation_steps": int | None,
    "train_epoch": float,
    "warmup_ratio": float,
    "lr_scaling.rule": str | None,
    "lr_scaling.reference_batch_size": int | None,
    "resume": bool | str | None,
    "load_weight": str | PathLike | None,
    "seed": int | None,
    "execution": str | None,
    "amp.dtype": Any,  # text, or torch.float16; the one that reads it knows them
    "amp.loss_scaling": dict | None,
    "matmul_precision": str | None,
    "convolution_precision": str | None,
    "activation_checkpoint.modules": list[str] | None,
    "on_nonfinite": str | None,
    "callbacks": list | None,
    "max_rollbacks": int | None,
    "microbatch": str | None,
    "gradient_clip_value": float | None,
    "tokens_per_sample": float | None,
    "flops_per_sample": float | None,
    "peak_flops": float | None,
    "nccl_fusion_threshold_mb": float | None,
    "nccl_fusion_max_ops": int | None,
    "checkpointer.max_to_keep": int | None,
    "checkpointer.save_model_after_n_epoch": int | None,
    "evaluation.evaluator": LazyCall | dict,
    "evaluation.eval_after_n_epoch": int | None,
    "evaluation.eval_mode": Literal["max", "min"],
    "scheduler": LazyCall | None,
    "dist.data_parallel_size": int | None,
    "dist.tensor_parallel_size": int | None,
    "dist.pipeline_parallel_size": int | None,
    "dist.pipeline_num_layers": int | None,
    "dist.custom_pipeline_stage_id": list[int] | None,
    "dist.num_nodes": int | None,
    "dist.num_gpus_per_node": int | None,
    "dist.timeout": float | None,
    "input_placement_device": str | None,
}

# The least that a number may be, where nothing else says so.
_least = {
    "log_period": 1,
    "tokens_per_sample": 0,
    "flops_per_sample": 0,
    "peak_flops": 0,
    "zero_optimization.stage": 1,
    "nccl_fusion_threshold_mb": 0,
    "checkpointer.max_to_keep": 1,
    "test_micro_batch_size": 1,
    "evaluation.eval_period": 0,
    "evaluation.eval_iter": 1,
    "dist.data_parallel_size": 1,
    "dist.tensor_parallel_size": 1,
    "dist.pipeline_parallel_size": 1,
}
