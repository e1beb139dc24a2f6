"""What becomes of each argument of `TrainingArguments`, in words: the program and the page go by one table."""

from typing import NamedTuple


class Argument(NamedTuple):
    """What becomes of an argument.

    Attributes:
        kind: "turned" into one of ours, "idle" where leaving it out changes no number, or "left" to the reader.
        text: What it is here, or what to do.
    """

    kind: str
    text: str


def _all(kind: str, **texts: str) -> dict[str, Argument]:
    return {name: Argument(kind, text) for name, text in texts.items()}


SHARDED = "`parallel=Plan(...)`, and `torchrun`: [scale](scaling.md)"
HUB = "`model.push_to_hub(...)` after the training"
RUNS = (
    "`run_dir=` has `metrics.jsonl`, `log.txt` and a report; a `WritersCallback` sends "
    "numbers elsewhere: [events](events.md)"
)
TRACKIO = "no counterpart: Treadle sends nothing anywhere by itself"
FIRST_RANK = "nothing: what is printed and written is the first process's"
EVALUATION_MEMORY = "`CollectedMetric` keeps outputs on the CPU; metrics by [name](metrics.md) keep sums alone"

ARGUMENTS: dict[str, Argument] = {
    **_all(
        "turned",
        output_dir='`Trainer(run_dir=...)`, unless `save_strategy` is `"no"`',
        per_device_train_batch_size="`train(per_device_batch_size=...)`; 8 is written out",
        num_train_epochs="`train(num_epochs=...)`; 3 is written out",
        max_steps="`train(max_steps=...)`",
        learning_rate="`lr=` of the optimizer",
        lr_scheduler_type='`create_scheduler_fn=` with `transformers.get_scheduler`; `"reduce_lr_on_plateau"` '
        'and `"greedy"` are left to you',
        lr_scheduler_kwargs="the same",
        warmup_steps="the same; a share of the steps below one, too",
        optim='`"adamw_torch"` and `"adamw_torch_fused"` are `torch.optim.AdamW`, `"sgd"`, '
        '`"adagrad"` and `"rmsprop"` torch\'s; others are left to you',
        weight_decay="`weight_decay=` of the optimizer, for the parameters that transformers' Trainer gives it to: "
        "`transformers_parameter_groups`",
        adam_beta1="`betas=` of the optimizer",
        adam_beta2="`betas=` of the optimizer",
        adam_epsilon="`eps=` of the optimizer",
        gradient_accumulation_steps="`train(gradient_accumulation_steps=...)`",
        max_grad_norm="`train(clip_norm=...)`; 1.0 is written out",
        label_smoothing_factor="`nn.CrossEntropyLoss(label_smoothing=...)` for a classifier; left to you for a "
        "language model, whose labels are shifted",
        bf16='`Trainer(precision="bf16")`',
        fp16='`Trainer(precision="fp16")`',
        tf32='`Trainer(matmul_precision="high")`',
        gradient_checkpointing="`model.gradient_checkpointing_enable()` before the trainer is built",
        gradient_checkpointing_kwargs="its argument",
        torch_compile="`Trainer(compile=True)`",
        logging_strategy='`train(log_every=...)`; `"no"` is left out: numbers go to the run folder',
        logging_steps="`train(log_every=...)`; 500 is written out",
        disable_tqdm="`callbacks=`: the usual ones without the progress bar",
        eval_strategy='`train(eval_every=...)`; None for `"no"`',
        eval_steps="`train(eval_every=...)`",
        per_device_eval_batch_size='`eval_dataloader_kwargs={"batch_size": ...}`, where it is another',
        save_strategy='`train(save_every=...)`; `"no"` leaves `run_dir=` out; `"best"` is `Policy(best=...)`',
        save_steps="`train(save_every=...)`; 500 is written out",
        save_total_limit="`Trainer(checkpoints=Policy(keep_last=...))`; without it three are kept here, and all there",
        load_best_model_at_end="`SaveBestModelCallback`, which loads the best weights at the end",
        metric_for_best_model='`watch_metric=` of the callbacks, without `eval_`; `"loss"` is `"eval_loss_epoch"`',
        greater_is_better="`greater_is_better=` of the callbacks",
        full_determinism="`Trainer(deterministic=True)`",
        seed="`Trainer(seed=...)`; 42 is written out. The order of the data is another one all the same",
        use_cpu='`Trainer(device="cpu")`',
        dataloader_drop_last='`train_dataloader_kwargs={"drop_last": ...}`',
        dataloader_num_workers='`"num_workers"` there',
        dataloader_pin_memory='`"pin_memory"` there',
        dataloader_persistent_workers='`"persistent_workers"` there',
        dataloader_prefetch_factor='`"prefetch_factor"` there',
        dataloader_multiprocessing_context='`"multiprocessing_context"` there',
        dataloader_in_order='`"in_order"` there',
        train_sampling_strategy='`"sequential"` is `"shuffle": False` there; `"group_by_length"` is left to you: a '
        "sampler in a `DataLoader` of your own",
        ddp_timeout="`Trainer(timeout=...)`",
        resume_from_checkpoint='`train(resume="auto")` for True; a path is left to you, since checkpoints of '
        "transformers are read by `from_pretrained`",
    ),
    **_all(
        "idle",
        average_tokens_across_devices="always so: losses are means over the tokens of all processes",
        use_cache="nothing: losses need no cache",
        logging_first_step="numbers of every step are in `metrics.jsonl`",
        log_on_each_node=FIRST_RANK,
        logging_nan_inf_filter="a loss that is not finite is never hidden: `on_nonfinite=`",
        log_level="Python's `logging`",
        log_level_replica="Python's `logging`",
        run_name="the name of the folder in `run_dir=`",
        project=TRACKIO,
        trackio_space_id=TRACKIO,
        trackio_bucket_id=TRACKIO,
        trackio_static_space_id=TRACKIO,
        prediction_loss_only="leave `metrics=` out",
        eval_accumulation_steps=EVALUATION_MEMORY,
        eval_use_gather_object=EVALUATION_MEMORY,
        save_on_each_node=FIRST_RANK,
        enable_jit_checkpoint="always so: a run is saved when it gets SIGTERM, and resumes",
        hub_token=HUB,
        hub_private_repo=HUB,
        hub_model_id=HUB,
        hub_strategy=HUB,
        hub_always_push=HUB,
        hub_revision=HUB,
        restore_callback_states_from_checkpoint="always so",
        label_names="`labels`, `label`, `targets` or `target` are found; for others, override the loss methods",
        length_column_name='only `train_sampling_strategy="group_by_length"` reads it',
        ddp_find_unused_parameters="found out by itself",
        ddp_bucket_cap_mb="decided by itself",
        ddp_broadcast_buffers="shared before evaluations and checkpoints",
        ddp_static_graph="decided by itself",
        ddp_backend="NCCL on CUDA, else gloo",
        debug="errors of every process are told; `treadle doctor` looks for faults",
        skip_memory_metrics="the peak of the device is recorded on CUDA",
        do_train="the program decides: nothing in transformers reads it",
        do_eval="the same",
        do_predict="the same",
        local_rank="`torchrun` says it",
        remove_unused_columns="remove columns that the model does not take: `dataset.remove_columns([...])`",
        torch_empty_cache_steps='`microbatch="auto"`, `activation_checkpointing=` and others: [precision and '
        "memory](precision.md)",
    ),
    **_all(
        "left",
        optim_args="arguments of the optimizer that you build",
        optim_target_modules="a parameter-efficient optimizer of its own package, built by you",
        bf16_full_eval="evaluations run in `precision=`; `model.bfloat16()` before an evaluation by itself",
        fp16_full_eval="the same, with `model.half()`",
        activation_checkpointing="`activation_checkpointing=` of `Trainer`: patterns of module names",
        activation_checkpointing_kwargs="the same",
        torch_compile_mode='`Trainer(compile="max-autotune")`',
        use_liger_kernel="patch the model yourself, before the trainer is built; `treadle.ops` has a "
        "cross-entropy without the full logits",
        liger_kernel_config="the same",
        neftune_noise_alpha="a forward hook on the embedding that adds noise in training",
        include_num_input_tokens_seen="`self.storage.put_scalar` in a loss method: [the loop](loop.md)",
        report_to=RUNS,
        eval_delay="`trainer.evaluate` in a callback",
        eval_on_start="`trainer.evaluate(...)` before `train`",
        eval_do_concat_batches="metrics see one batch after the other: [metrics](metrics.md)",
        include_for_metrics="override `update_metrics(self, batch, batch_output)`, which has the whole batch",
        batch_eval_metrics="an object with `update`, `compute` and `reset`",
        save_only_model="`SaveBestModelCallback(save_optimizer=False)` beside, or in place of, `run_dir=`",
        auto_find_batch_size='`Trainer(microbatch="auto")` halves micro-batches and keeps the batch',
        torch_compile_backend="inductor",
        push_to_hub=HUB,
        ignore_data_skip="a run resumes with the next sample, always",
        data_seed="`seed=` is the seed of the data, too; for another, a sampler in a `DataLoader` of your own",
        accelerator_config="each of its keys has an argument of `Trainer`: [options](options.md)",
        parallelism_config=SHARDED,
        fsdp=SHARDED,
        fsdp_config=SHARDED,
        deepspeed=SHARDED,
    ),
}
"""Every argument of `TrainingArguments` of transformers 5, by name."""


def page_table() -> str:
    """Return the table of `docs/migrating-from-transformers.md`."""
    said = {"turned": "turned", "idle": "left out", "left": "**left to you**"}
    rows = [f"| `{name}` | {said[one.kind]} | {one.text} |" for name, one in sorted(ARGUMENTS.items())]
    return "\n".join(["| argument | `treadle migrate` | here |", "|---|---|---|", *rows])
