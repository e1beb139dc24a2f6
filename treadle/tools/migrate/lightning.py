"""Modules and programs for Lightning."""

import ast
from collections.abc import Callable
from typing import Any

from treadle.tools.migrate.imports import Home, ImportMap, Rewriter
from treadle.tools.migrate.source import Call, Source, literal

ROOTS = ("lightning", "pytorch_lightning", "lightning_fabric")
PACKAGES = ("lightning", "lightning.pytorch", "pytorch_lightning")
HOMES = {
    "LightningModule": Home("treadle.lightning", "StepModel"),
    "Trainer": Home("treadle.lightning", "StepTrainer"),
    "Callback": Home("treadle", "TrainerCallback"),
    "seed_everything": Home("", "torch.manual_seed"),
}
CALLBACKS = {
    "EarlyStopping": Home("treadle.callbacks", "EarlyStoppingCallback"),
    "ModelCheckpoint": Home("treadle.callbacks", "SaveBestModelCallback"),
    "LearningRateMonitor": Home("treadle.callbacks", "LearningRateMonitor"),
    "Callback": Home("treadle", "TrainerCallback"),
}
FILES = ("early_stopping", "model_checkpoint", "lr_monitor", "callback")
PLACES = {
    "LightningModule": ("core", "core.module", "core.lightning"),
    "LightningDataModule": ("core", "core.datamodule"),
    "Trainer": ("trainer", "trainer.trainer"),
    "seed_everything": ("utilities.seed",),
}
"""The modules in which a name is, beside the package itself."""
DEEP = {name: tuple(f"{one}.{place}" for one in PACKAGES for place in places) for name, places in PLACES.items()}
DATA_MODULE = tuple(f"{module}.LightningDataModule" for module in (*PACKAGES, *DEEP["LightningDataModule"]))
SEEDS = ("lightning.fabric", "lightning.fabric.utilities.seed", "lightning_fabric")
LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches")
REASONS = {
    "TensorBoardLogger": "treadle.writers.TensorboardXWriter; metrics.jsonl and 'treadle report' are there without one",
    "WandbLogger": "treadle.writers.WandbWriter",
    "CSVLogger": "treadle.writers.CSVWriter",
    "LightningCLI": "a lazy config, and 'treadle train CONFIG'",
    "TQDMProgressBar": "nothing: there is a progress bar",
    "RichProgressBar": "nothing: there is a progress bar",
    "ModelSummary": "nothing in its place",
    "StochasticWeightAveraging": "treadle.callbacks.ModelEmaCallback",
}
RENAMED = {
    "max_epochs": "num_epochs",
    "max_steps": "max_steps",
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "gradient_clip_val": "clip_norm",
    "default_root_dir": "run_dir",
    "log_every_n_steps": "log_every",
    "deterministic": "deterministic",
    "callbacks": "callbacks",
    "enable_progress_bar": "progress",
}
"""Arguments of Lightning's trainer that are called otherwise, or the same."""
PRECISIONS: dict[Any, str] = {
    **dict.fromkeys(("16-mixed", "16", 16), "fp16"),
    **dict.fromkeys(("bf16-mixed", "bf16"), "bf16"),
    **dict.fromkeys(("32-true", "32", 32), "fp32"),
}
IDLE = {
    **dict.fromkeys(
        ("devices", "num_nodes", "enable_checkpointing", "enable_model_summary", "num_sanity_val_steps"), ""
    ),
    "strategy": "start the program with torchrun; parallel=Plan(...) shards the model",
    "logger": "with run_dir= there is metrics.jsonl, and a report",
}
"""Arguments that are left out, with what to say of it: launching, logging and saving are done elsewhere."""
STRAY = {
    "logger": "self.log puts numbers where all writers see them",
    "all_gather": "self.trainer.gather(tensor)",
    "example_input_array": "nothing uses it",
}
"""What modules call on themselves and a `StepModel` does not have."""
COUNTED = (
    "this module makes its updates itself, and a step is a call of training_step; Lightning counts the steps of every "
    "optimizer"
)
OLD_METHODS = {
    "training_epoch_end": "on_train_epoch_end(self), and keep what the steps return in a list of your own",
    "validation_epoch_end": "on_validation_epoch_end(self), and keep what the steps return in a list of your own",
    "test_epoch_end": "on_validation_epoch_end(self), which test() calls, too",
    "optimizer_step": "optimizer_step of a treadle.Trainer",
    "configure_gradient_clipping": "clip_norm= or gradient_clip_value= of StepTrainer",
    "lr_scheduler_step": "scheduler_step of a treadle.Trainer",
    "configure_callbacks": "callbacks= of StepTrainer",
    "predict_step": "forward: predict() returns its outputs",
    "on_train_batch_end": "on_update_end of a callback",
    "on_train_batch_start": "on_train_step_start of a callback",
}


def migrate(source: Source) -> None:
    """Turn a Lightning module, and the program around it, into one for Treadle."""
    rewriter = Rewriter(source, _table(), ROOTS, renames=True, dropped=DATA_MODULE)
    rewriter.run()
    seeds = [node for node in source.find(ast.Call) if _is(rewriter, node, "seed_everything")]
    for node in source.find(ast.Call):
        if _is(rewriter, node, "Trainer"):
            _trainer(source, Call(source, node), seeds, rewriter)
        for name, change in CHANGES.items():
            if _is(rewriter, node, name):
                change(source, Call(source, node))
    for node in seeds:
        _seed(source, Call(source, node))
    _change_classes(source, rewriter)
    _change_methods_of_trainer(source, rewriter)
    if _makes_its_updates(source):
        _tell_of_updates(source)
    rewriter.finish()


def _table() -> ImportMap:
    homes = {(package, name): home for package in PACKAGES for name, home in HOMES.items()}
    homes |= {(module, name): HOMES[name] for name, modules in DEEP.items() if name in HOMES for module in modules}
    homes |= {(module, "seed_everything"): HOMES["seed_everything"] for module in SEEDS}
    for package in PACKAGES:
        homes |= {(f"{package}.callbacks", name): home for name, home in CALLBACKS.items()}
        homes |= {(f"{package}.callbacks.{file}", name): home for name, home in CALLBACKS.items() for file in FILES}
    return ImportMap(homes, REASONS)


def _is(rewriter: Rewriter, node: ast.Call, name: str) -> bool:
    full = rewriter.full_name(node.func)
    return full is not None and full.rpartition(".")[2] == name


# Calls --------------------------------------------------------------------------------------------------------


def _trainer(source: Source, call: Call, seeds: list[ast.Call], rewriter: Rewriter) -> None:
    """Turn the arguments of Lightning's trainer into those of `StepTrainer`."""
    _limits(source, call, rewriter)
    for keyword in call.node.keywords:
        name = str(keyword.arg)
        if name in LIMITS:
            continue
        if name == "max_steps" and _makes_its_updates(source):
            source.note(keyword, f"max_steps: {COUNTED}; write the number of batches")
        if name in RENAMED:
            call.rename(keyword, RENAMED[name])
        elif name == "precision":
            _precision(source, call, keyword)
        elif name == "accelerator":
            _device(source, call, keyword)
        elif name in ("check_val_every_n_epoch", "val_check_interval"):
            _evaluation(source, call, keyword)
        elif name == "gradient_clip_algorithm":
            _clipping(source, call, keyword)
        else:
            call.drop(keyword)
            told = IDLE.get(name, "it has no counterpart")
            if told:
                source.note(keyword, f"{name}= is left out: {told}", left=name not in IDLE)
    if not {"max_epochs", "max_steps"} & {keyword.arg for keyword in call.node.keywords}:
        call.add("num_epochs=1000")
        source.note(call.node, "Lightning's 1000 epochs by default are written out", left=False)
    if seeds and seeds[0].args:
        call.add(f"seed={source.segment(seeds[0].args[0])}")
    call.finish()


def _limits(source: Source, call: Call, rewriter: Rewriter) -> None:
    """Turn limits of batches that are the same for training and evaluation into a callback, and tell of others."""
    given = {name: keyword for name in LIMITS if (keyword := call.keyword(name)) is not None}
    for keyword in given.values():
        call.drop(keyword)
    cutting = {name: one for name, one in given.items() if not _is_everything(one.value)}
    numbers = {source.segment(one.value) for one in cutting.values()}
    number = numbers.pop() if len(numbers) == 1 and {"limit_train_batches", "limit_val_batches"} <= set(cutting) else ""
    if number.isdecimal() and int(number):
        made = f"{rewriter.want('treadle.callbacks', 'LimitBatchesCallback')}({number})"
        listed = call.keyword("callbacks")
        if listed is None:
            call.add(f"callbacks=[{made}]")
        elif isinstance(listed.value, ast.List) and listed.value.elts:
            end = source.span(listed.value.elts[-1])[1]
            source.replace_span((end, end), f", {made}")
        else:
            source.note(listed, f"add {made} to the callbacks")
        return
    for name, keyword in cutting.items():
        text = (
            f"{name}={source.segment(keyword.value)}: LimitBatchesCallback(number) cuts training and evaluation alike; "
            "for one of them hand over a torch.utils.data.Subset of the data"
        )
        source.note(keyword, text)


def _is_everything(node: ast.expr) -> bool:
    """Whether a limit is none: 1.0 stands for all batches, and 1 for a single one."""
    value = literal(node)
    return (isinstance(value, float) and value == 1.0) or (isinstance(node, ast.Constant) and value is None)


def _precision(source: Source, call: Call, keyword: ast.keyword) -> None:
    value = literal(keyword.value)
    if value in PRECISIONS:
        call.rename(keyword, "precision", f'"{PRECISIONS[value]}"')
        return
    call.drop(keyword)
    source.note(keyword, f"precision={source.segment(keyword.value)}: write one of 'fp32', 'bf16', 'fp16', 'auto'")


def _device(source: Source, call: Call, keyword: ast.keyword) -> None:
    value = literal(keyword.value)
    if value in ("cpu", "mps"):
        call.rename(keyword, "device")
        return
    call.drop(keyword)
    if value not in ("gpu", "cuda", "auto"):
        source.note(
            keyword, f"accelerator={source.segment(keyword.value)}: pass device=; by default a GPU if there is one"
        )


def _evaluation(source: Source, call: Call, keyword: ast.keyword) -> None:
    value = literal(keyword.value)
    if keyword.arg == "check_val_every_n_epoch" and isinstance(value, int):
        call.rename(keyword, "eval_every", f'"{value} epoch{"s" * (value != 1)}"')
    elif isinstance(value, int) and not isinstance(value, bool):
        call.rename(keyword, "eval_every")
    else:
        call.drop(keyword)
        source.note(
            keyword, f"{keyword.arg}={source.segment(keyword.value)}: eval_every= takes '500 steps' or '2 epochs'"
        )


def _clipping(source: Source, call: Call, keyword: ast.keyword) -> None:
    bound = call.keyword("gradient_clip_val")
    if literal(keyword.value) == "value" and bound is not None:
        call.rename(bound, "gradient_clip_value")
    call.drop(keyword)


def _mode(call: Call, keyword: ast.keyword) -> None:
    call.rename(keyword, "greater_is_better", str(literal(keyword.value) == "max"))


def _early_stopping(source: Source, call: Call) -> None:
    names = {"monitor": "watch_metric", "patience": "early_stopping_patience", "min_delta": "early_stopping_threshold"}
    given = {str(keyword.arg) for keyword in call.node.keywords}
    for position, name in zip(call.node.args, ("monitor", "min_delta", "patience"), strict=False):
        source.insert_before(position, f"{names[name]}=")
        given.add(name)
    for keyword in call.node.keywords:
        if keyword.arg in names:
            call.rename(keyword, names[keyword.arg])
        elif keyword.arg == "mode":
            _mode(call, keyword)
        else:
            call.drop(keyword)
            if keyword.arg not in ("verbose", "strict"):
                source.note(keyword, f"EarlyStopping({keyword.arg}=) has no counterpart; it is left out")
    # Lightning's defaults, which are others.
    for name, default in (("patience", "3"), ("min_delta", "0.0")):
        if name not in given:
            call.add(f"{names[name]}={default}")
    call.finish()


def _checkpoint(source: Source, call: Call) -> None:
    for keyword in call.node.keywords:
        if keyword.arg == "monitor":
            call.rename(keyword, "watch_metric")
        elif keyword.arg == "mode":
            _mode(call, keyword)
        else:
            call.drop(keyword)
            if keyword.arg not in ("verbose", "save_top_k"):
                told = "run_dir= keeps checkpoints to resume from, save_path= names the file of the best weights"
                source.note(keyword, f"ModelCheckpoint({keyword.arg}=) is left out: {told}", left=False)
    if call.keyword("monitor") is None:
        source.note(call.node, "ModelCheckpoint without monitor= keeps the last weights; here run_dir= does that")
    call.add("load_saved_checkpoint=False")
    call.finish()


def _monitor(source: Source, call: Call) -> None:
    for keyword in call.node.keywords:
        call.drop(keyword)
    call.finish()


CHANGES: dict[str, Callable[[Source, Call], None]] = {
    "EarlyStopping": _early_stopping,
    "ModelCheckpoint": _checkpoint,
    "LearningRateMonitor": _monitor,
}


def _seed(source: Source, call: Call) -> None:
    for keyword in call.node.keywords:
        call.drop(keyword)
    call.finish()


# Classes ------------------------------------------------------------------------------------------------------


def _change_classes(source: Source, rewriter: Rewriter) -> None:
    for node in source.find(ast.ClassDef):
        bases = [rewriter.full_name(base) or "" for base in node.bases]
        kinds = {base.rpartition(".")[2] for base in bases}
        if "LightningDataModule" in kinds:
            _drop_base(source, node)
        elif "LightningModule" in kinds:
            _check_module(source, node)
        elif "Callback" in kinds:
            text = (
                f"{node.name}: events have other names and arguments, (self, trainer, **kwargs); see docs/callbacks.md"
            )
            source.note(node, text)


def _drop_base(source: Source, node: ast.ClassDef) -> None:
    """Make a data module a class of its own: only its methods are used."""
    if len(node.bases) == 1 and not node.keywords:
        start = source.place(node.lineno, node.col_offset) + len("class ") + len(node.name)
        end = source.text.index(":", source.span(node.bases[0])[1])
        source.replace_span((start, end), "")
    else:
        source.note(node, f"{node.name}: leave LightningDataModule out of its bases")


def _check_module(source: Source, node: ast.ClassDef) -> None:
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef) and inner.name in OLD_METHODS:
            source.note(inner, f"{inner.name} is not called; instead: {OLD_METHODS[inner.name]}")
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            if inner.attr in STRAY:
                source.note(inner, f"self.{inner.attr} has no counterpart; instead: {STRAY[inner.attr]}")
        elif isinstance(inner, ast.Attribute) and inner.attr == "toggle_model":
            source.note(inner, "optimizer.toggle_model: self.toggle_optimizer(optimizer) and self.untoggle_optimizer")
        elif isinstance(inner, ast.Attribute) and inner.attr == "estimated_stepping_batches":
            source.note(inner, "the number of steps is not known when the optimizer is made; write it out")


def _makes_its_updates(source: Source) -> bool:
    """Whether a module sets `automatic_optimization = False`, and so makes its updates itself."""
    return any(
        ast.unparse(target).rpartition(".")[2] == "automatic_optimization" and literal(node.value) is False
        for node in source.find(ast.Assign)
        for target in node.targets
    )


def _tell_of_updates(source: Source) -> None:
    """Tell what is otherwise where a module makes its updates itself."""
    for node in source.find(ast.Attribute):
        if ast.unparse(node) == "self.global_step":
            source.note(node, f"self.global_step: {COUNTED}", left=False)
    for node in source.find(ast.Call):
        if ast.unparse(node.func) == "self.manual_backward" and len(node.args) + len(node.keywords) > 1:
            source.note(node, "manual_backward takes the loss alone; of a graph that is needed twice add the losses up")


def _change_methods_of_trainer(source: Source, rewriter: Rewriter) -> None:
    """Change calls on the trainer, and what is read from it."""
    made = {
        ast.unparse(target)
        for node in source.find(ast.Assign)
        if isinstance(node.value, ast.Call) and _is(rewriter, node.value, "Trainer")
        for target in node.targets
    }
    for node in source.find(ast.Attribute):
        if ast.unparse(node.value) in made and node.attr in (
            "callback_metrics",
            "logged_metrics",
            "checkpoint_callback",
        ):
            source.note(node, f"trainer.{node.attr}: fit() returns a result, whose history has every metric by name")
        elif node.attr in ("load_from_checkpoint", "save_checkpoint") and not isinstance(
            source.parent(node), ast.Attribute
        ):
            source.note(node, f"{node.attr}: 'treadle import' makes weights of a .ckpt; load_state_dict takes them")
    for node in source.find(ast.Call):
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in made:
            _change_path(source, Call(source, node))


def _change_path(source: Source, call: Call) -> None:
    path = call.keyword("ckpt_path")
    if path is None:
        return
    if literal(path.value) == "last":
        call.rename(path, "resume", '"auto"')
    else:
        call.drop(path)
        source.note(path, "ckpt_path= is left out: resume='auto' resumes the run in run_dir=")
    call.finish()
