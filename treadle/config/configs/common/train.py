"""The settings of a run that is driven from a config; docs/config.md says what each key means."""

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
