"""Programs that train with the Trainer of transformers; its models, tokenizers and collators stay what they are."""

import ast
import textwrap
from typing import Any

from treadle.tools.migrate.imports import Home, ImportMap, Rewriter
from treadle.tools.migrate.source import Source, literal
from treadle.tools.migrate.transformers_arguments import ARGUMENTS
from treadle.tools.migrate.transformers_callbacks import change_callback

ROOTS = ("transformers",)
MODULES = ("transformers", "transformers.trainer", "transformers.training_args", "transformers.trainer_callback")
HOMES = {
    "Trainer": Home("treadle", "Trainer"),
    "TrainerCallback": Home("treadle", "TrainerCallback"),
    "EarlyStoppingCallback": Home("treadle.callbacks", "EarlyStoppingCallback"),
}
REASONS = {
    "Seq2SeqTrainer": "treadle.Trainer; with predict_with_generate=, call model.generate in update_metrics",
    "Seq2SeqTrainingArguments": "arguments of Trainer and train; see docs/migrating-from-transformers.md",
    "HfArgumentParser": "a lazy config, or argparse: see docs/config.md",
    "ProgressCallback": "nothing: there is a progress bar",
    "PrinterCallback": "nothing: each epoch has its line",
    "TrainerControl": "trainer.request_stop(reason)",
    "TrainerState": "trainer.progress, and trainer.run_history",
}
ARGUMENTS_CLASS = "TrainingArguments"
SPECIAL = ("Trainer", ARGUMENTS_CLASS, "TrainerCallback", "Seq2SeqTrainer", "Seq2SeqTrainingArguments")
OVERRIDES = {
    "compute_loss": "calculate_train_batch_loss(self, batch), which returns {'loss': ..., 'model_outputs': ..., "
    "'batch_size': ...}",
    "training_step": "calculate_train_batch_loss(self, batch), or update(self, phase, window)",
    "prediction_step": "calculate_eval_batch_loss(self, batch)",
    "evaluation_loop": "_run_eval_epoch(self, valid_dl, ...)",
    "create_optimizer": "optimizer= of Trainer",
    "create_scheduler": "create_scheduler_fn= of train",
    "create_optimizer_and_scheduler": "optimizer= of Trainer, and create_scheduler_fn= of train",
    "get_train_dataloader": "train_dataset= of train, which takes a DataLoader",
    "get_eval_dataloader": "eval_dataset= of train, which takes a DataLoader",
    "log": "self.storage.put_scalar(name, value)",
}
"""What subclasses of their trainer override, and what of ours stands for it."""
OF_TRAINER = {
    "predict": "predict(dataset) returns the model's outputs; override calculate_prediction to return their logits",
    "push_to_hub": "model.push_to_hub(...)",
    "create_model_card": "nothing writes one",
    "log_metrics": "print what evaluate returned",
    "save_metrics": "metrics.jsonl of the run folder has them",
    "save_state": "the run folder has it",
    "state": "trainer.progress has step and epoch, trainer.run_history every metric",
    "hyperparameter_search": "treadle.search: docs/nas-search.md",
    "add_callback": "callbacks= of Trainer, or trainer.callback_handler.add_callback(callback)",
    "accelerator": "arguments of Trainer",
}
"""What programs ask of their trainer, and what to do."""
OPTIMIZERS = {
    "adamw_torch": "AdamW",
    "adamw_torch_fused": "AdamW",
    "adamw": "AdamW",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
}
SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"),
)
LOADER = {
    "dataloader_drop_last": "drop_last",
    "dataloader_num_workers": "num_workers",
    "dataloader_pin_memory": "pin_memory",
    "dataloader_persistent_workers": "persistent_workers",
    "dataloader_prefetch_factor": "prefetch_factor",
    "dataloader_multiprocessing_context": "multiprocessing_context",
    "dataloader_in_order": "in_order",
}
CLASSIFIERS = ("SequenceClassification", "ImageClassification", "AudioClassification")
PAGE = "docs/migrating-from-transformers.md"
WIDTH = 100


def has_trainer(tree: ast.Module) -> bool:
    """Whether a program uses what trains in transformers, and not only its models."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ROOTS:
            if any(alias.name in SPECIAL for alias in node.names):
                return True
        elif isinstance(node, ast.Attribute) and node.attr in SPECIAL and ast.unparse(node.value) in ROOTS:
            return True
    return False


def migrate(source: Source) -> None:
    """Turn a program that uses the Trainer of transformers into one for Treadle."""
    homes = {(module, name): home for module in MODULES for name, home in HOMES.items()}
    made = _arguments_made(source)
    names = [f"{module}.{ARGUMENTS_CLASS}" for module in MODULES]
    gone = _only_for_trainers(source, made)
    rewriter = Rewriter(
        source, ImportMap(homes, REASONS), ROOTS, renames=True, dropped=tuple(names) if gone else (), stays=True
    )
    rewriter.run()
    if not gone:
        for node in source.find(ast.Call):
            if _ends_with(node.func, ARGUMENTS_CLASS) or _ends_with(node.func, "HfArgumentParser"):
                source.note(node, f"its arguments become those of Trainer and train, one by one: {PAGE}")
    trainers = {}
    if gone:
        for node in source.find(ast.Call):
            built = _Trainer.of(source, rewriter, node, made)
            if built is not None:
                trainers[built.name] = built
                built.rewrite()
        for statement in made.values():
            source.remove_line(statement) if not _shares_line(source, statement) else source.note(
                statement, "remove it"
            )
    _change_early_stopping(source, rewriter, trainers)
    _change_uses(source, rewriter, trainers)
    for node in source.find(ast.ClassDef):
        bases = {(rewriter.full_name(base) or "").rpartition(".")[2] for base in node.bases}
        if "TrainerCallback" in bases:
            change_callback(source, node)
        elif bases & {"Trainer", "Seq2SeqTrainer"}:
            _tell_of_overrides(source, node)
    rewriter.finish()


def _ends_with(node: Any, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _arguments_made(source: Source) -> dict[str, ast.Assign]:
    """Return the statements that make arguments, by the name they give them."""
    return {
        node.targets[0].id: node
        for node in source.find(ast.Assign)
        if isinstance(node.value, ast.Call)
        and _ends_with(node.value.func, ARGUMENTS_CLASS)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
    }


def _only_for_trainers(source: Source, made: dict[str, ast.Assign]) -> bool:
    """Whether all arguments are written out in the program, and handed to trainers and nobody else."""
    calls = [node for node in source.find(ast.Call) if _ends_with(node.func, ARGUMENTS_CLASS)]
    inline = [node for node in calls if isinstance(source.parent(node), (ast.keyword, ast.Call))]
    plain = all(all(one.arg is not None for one in node.keywords) and len(node.args) <= 1 for node in calls)
    uses = [node for node in source.find(ast.Name) if node.id in made and isinstance(node.ctx, ast.Load)]
    handed = [node for node in uses if isinstance(source.parent(node), (ast.keyword, ast.Call))]
    mentions = [node for node in source.find(ast.Name, ast.Attribute) if _ends_with(node, ARGUMENTS_CLASS)]
    annotated = len(mentions) > len(calls)
    return plain and not annotated and len(uses) == len(handed) and len(made) + len(inline) == len(calls)


def _shares_line(source: Source, node: ast.stmt) -> bool:
    return any(
        other is not node and isinstance(other, ast.stmt) and other.lineno == node.lineno
        for other in source.find(ast.stmt)
    )


def _tell_of_overrides(source: Source, node: ast.ClassDef) -> None:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name in OVERRIDES:
            source.note(method, f"{method.name} is not called; instead: {OVERRIDES[method.name]}")


class _Trainer:
    """A trainer that a program builds, with the arguments it is given.

    Args:
        source: The program.
        rewriter: What changes its imports.
        node: The call that builds it.
        statement: The assignment of it.
        arguments: The call that makes its arguments; None if it has none.
    """

    def __init__(
        self, source: Source, rewriter: Rewriter, node: ast.Call, statement: ast.Assign, arguments: ast.Call | None
    ) -> None:
        self.source, self.rewriter, self.node, self.statement = source, rewriter, node, statement
        target = statement.targets[0]
        self.name = source.segment(target)
        self.given = {str(one.arg): one.value for one in node.keywords}
        self.given |= dict(
            zip(("model", "args", "data_collator", "train_dataset", "eval_dataset"), node.args, strict=False)
        )
        self.asked: dict[str, Any] = {}
        if arguments is not None:
            self.asked = {str(one.arg): one.value for one in arguments.keywords}
            self.asked |= dict(zip(("output_dir",), arguments.args, strict=False))

    @classmethod
    def of(cls, source: Source, rewriter: Rewriter, node: ast.Call, made: dict[str, ast.Assign]) -> "_Trainer | None":
        """Return the trainer that a call builds; None if it builds none."""
        full = rewriter.full_name(node.func) or ""
        own = {one.name for one in source.find(ast.ClassDef) if any(_ends_with(base, "Trainer") for base in one.bases)}
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        statement = source.parent(node)
        if not (full.endswith(".Trainer") or called in own) or not isinstance(statement, ast.Assign):
            return None
        handed = next(
            (one.value for one in node.keywords if one.arg == "args"), node.args[1] if len(node.args) > 1 else None
        )
        inner = made[handed.id].value if isinstance(handed, ast.Name) and handed.id in made else handed
        if handed is not None and not isinstance(inner, ast.Call):
            source.note(node, f"its arguments are made elsewhere; write them as those of Trainer and train: {PAGE}")
            return None
        return cls(source, rewriter, node, statement, inner if isinstance(inner, ast.Call) else None)

    # What was asked for ---------------------------------------------------------------------------------------

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an argument of the arguments as it is written."""
        return self.source.segment(self.asked[name]) if name in self.asked else default

    def value(self, name: str, default: Any = None) -> Any:
        """Return an argument of the arguments that is a constant; None where it is another expression."""
        return literal(self.asked[name]) if name in self.asked else default

    def own(self, name: str) -> str | None:
        """Return an argument of the trainer itself as it is written; None if it is None or not there."""
        node = self.given.get(name)
        return (
            None
            if node is None or (isinstance(node, ast.Constant) and node.value is None)
            else self.source.segment(node)
        )

    def tell(self, name: str, text: str, *, left: bool = True) -> None:
        """Say something about an argument."""
        node = self.asked.get(name, self.given.get(name, self.node))
        self.source.note(node, f"{name}: {text}", left=left)

    def want(self, module: str, name: str) -> str:
        """Have a name imported."""
        return self.rewriter.want(module, name)

    @property
    def watched(self) -> tuple[str, bool]:
        """The metric that says which weights are best, and whether more is better."""
        name = str(self.value("metric_for_best_model", "loss")).removeprefix("eval_")
        greater = self.value("greater_is_better", not name.endswith("loss"))
        return ("eval_loss_epoch" if name == "loss" else name), bool(greater)

    def watching(self) -> str:
        """Return the arguments by which a callback watches that metric."""
        name, greater = self.watched
        return f'watch_metric="{name}", greater_is_better={greater}'

    # Writing --------------------------------------------------------------------------------------------------

    def rewrite(self) -> None:
        """Write the trainer, with what is made before it."""
        self._tell_of_the_rest()
        before: list[str] = []
        model = self._model(before)
        if self.value("gradient_checkpointing") is True:
            options = self.text("gradient_checkpointing_kwargs")
            given = f"gradient_checkpointing_kwargs={options}" if options else ""
            before.append(f"{model}.gradient_checkpointing_enable({given})")
        optimizer = self._optimizer(model, before)
        loss = self._loss()
        called = self.source.segment(self.node.func)
        if self.rewriter.full_name(self.node.func):
            called = self.want("treadle", "Trainer")
        parts = [model, loss, optimizer, *self._options()]
        column = " " * self.statement.col_offset
        lines = [*before, f"{self.name} = {_call(called, parts, column)}"]
        self.source.replace(self.statement, f"\n{column}".join(lines))

    def _tell_of_the_rest(self) -> None:
        for name, node in self.asked.items():
            argument = ARGUMENTS.get(name)
            idle = literal(node) in (None, False, 0, "", "none") or (isinstance(node, ast.List) and not node.elts)
            if argument is None:
                self.tell(name, f"it is none of transformers 5; see {PAGE}")
            elif argument.kind == "left" and not idle:
                self.tell(name, f"left out; instead: {argument.text}")
            elif argument.kind == "idle" and name == "remove_unused_columns" and literal(node) is False:
                continue
        if self.value("remove_unused_columns", True) is True:
            text = "columns that the model does not take must not be in the data: dataset.remove_columns([...])"
            self.source.note(self.node, text, left=False)
        for name in ("compute_loss_func", "optimizer_cls_and_kwargs", "preprocess_logits_for_metrics"):
            if self.own(name) is not None:
                instead = {
                    "compute_loss_func": "override calculate_train_batch_loss",
                    "optimizer_cls_and_kwargs": "pass the optimizer itself",
                    "preprocess_logits_for_metrics": "call it in the function of CollectedMetric, or in update_metrics",
                }
                self.tell(name, f"left out; instead: {instead[name]}")

    def _model(self, before: list[str]) -> str:
        given, maker = self.given.get("model"), self.own("model_init")
        if isinstance(given, ast.Name):
            return given.id
        text = self.source.segment(given) if given is not None else f"{maker}()" if maker else None
        if text is None:
            self.source.note(self.node, "it has no model; pass one to Trainer")
            return "model"
        name = "model" if "model" not in self.source.names() else "trained_model"
        before.append(f"{name} = {text}")
        return name

    def _optimizer(self, model: str, before: list[str]) -> str:
        pair = self.given.get("optimizers")
        if isinstance(pair, ast.Tuple) and literal(pair.elts[0]) is None and not isinstance(pair.elts[0], ast.Constant):
            return self.source.segment(pair.elts[0])
        if pair is not None and not isinstance(pair, ast.Tuple):
            self.tell(
                "optimizers", "write the optimizer and the schedule apart: optimizer= of Trainer, create_scheduler_fn="
            )
        kind = self.value("optim", "adamw_torch_fused")
        if kind not in OPTIMIZERS:
            self.tell("optim", f"build the optimizer yourself; {ARGUMENTS['optim'].text}")
        called = OPTIMIZERS.get(kind, "AdamW")
        rate, decay = self.text("learning_rate", "5e-05"), self.text("weight_decay", "0.0")
        parameters = f"{model}.parameters()"
        if self.value("weight_decay", 0.0) != 0:
            groups = self.want("treadle.optim.param_groups", "transformers_parameter_groups")
            parameters = f"{groups}({model}, weight_decay={decay})"
            parts = [parameters, f"lr={rate}"]
        else:
            parts = [parameters, f"lr={rate}", "weight_decay=0.0"]
        if called == "AdamW" and {"adam_beta1", "adam_beta2"} & set(self.asked):
            parts.append(f"betas=({self.text('adam_beta1', '0.9')}, {self.text('adam_beta2', '0.999')})")
        if called == "AdamW" and "adam_epsilon" in self.asked:
            parts.append(f"eps={self.text('adam_epsilon')}")
        torch = self.want("", "torch")
        column = " " * self.statement.col_offset
        name = "optimizer" if "optimizer" not in self.source.names() else "trained_optimizer"
        before.append(f"{name} = {_call(f'{torch}.optim.{called}', parts, column)}")
        return name

    def _loss(self) -> str:
        if self.value("label_smoothing_factor", 0.0) == 0:
            return "None"
        share = self.text("label_smoothing_factor")
        if any(one in self.source.text for one in CLASSIFIERS) and "CausalLM" not in self.source.text:
            return f"{self.want('', 'torch')}.nn.CrossEntropyLoss(label_smoothing={share})"
        self.tell(
            "label_smoothing_factor", "the labels of a language model are shifted; compute the loss in a loss method"
        )
        return "None"

    def _options(self) -> list[str]:
        """Return the arguments of our trainer, beside model, loss and optimizer."""
        found = [*self._callbacks(), *self._metrics()]
        if self.value("save_strategy", "steps") != "no" and "output_dir" in self.asked:
            found.append(f"run_dir={self.text('output_dir')}")
        found += self._policy()
        found.append(f"seed={self.text('seed', '42')}")
        for name in ("bf16", "fp16"):
            if self.value(name, False) is not False:
                text = self.text(name)
                found.append(f'precision="{name}"' if text == "True" else f'precision="{name}" if {text} else "fp32"')
        for name, ours in (
            ("tf32", 'matmul_precision="high"'),
            ("torch_compile", "compile=True"),
            ("full_determinism", "deterministic=True"),
            ("use_cpu", 'device="cpu"'),
        ):
            if self.value(name) is True:
                found.append(ours)
            elif name in self.asked and self.value(name) is not False:
                self.tell(name, f"write {ours} where it holds")
        if "ddp_timeout" in self.asked:
            found.append(f"timeout={self.text('ddp_timeout')}")
        return found

    def _callbacks(self) -> list[str]:
        added = []
        listed = self.given.get("callbacks")
        if isinstance(listed, ast.List):
            added += [self._callback(one) for one in listed.elts]
        elif self.own("callbacks") is not None:
            added.append(f"*{self.own('callbacks')}")
        if self.value("load_best_model_at_end", False) is not False:
            best = self.want("treadle.callbacks", "SaveBestModelCallback")
            added.append(f"{best}({self.watching()})")
        usual = self.want("treadle", "DEFAULT_CALLBACKS") if added and self.value("disable_tqdm") is not True else ""
        if self.value("disable_tqdm") is True:
            printing = self.want("treadle.callbacks", "PrintProgressCallback")
            return [_broken("callbacks=[", [printing, *added], "]")]
        return [_broken("callbacks=[", [f"*{usual}", *added], "]")] if added else []

    def _callback(self, node: ast.expr) -> str:
        if isinstance(node, ast.Call) and _ends_with(node.func, "EarlyStoppingCallback"):
            return early_stopping(self.source, self.rewriter, node, self.watching())
        if _ends_with(node, "EarlyStoppingCallback"):
            name = self.want("treadle.callbacks", "EarlyStoppingCallback")
            return f"{name}(early_stopping_threshold=0.0, {self.watching()})"
        return self.source.segment(node)

    def _metrics(self) -> list[str]:
        function = self.own("compute_metrics")
        if function is None:
            return []
        collected = self.want("treadle", "CollectedMetric")
        prediction = self.want("transformers", "EvalPrediction")
        pair = "outputs.numpy(), targets.numpy()"
        return [f"metrics={collected}(lambda outputs, targets: {function}({prediction}({pair})))"]

    def _policy(self) -> list[str]:
        parts = []
        if self.value("save_total_limit", "") != "" and self.text("save_total_limit") != "None":
            parts.append(f"keep_last={self.text('save_total_limit')}")
        if self.value("save_strategy") == "best":
            name, greater = self.watched
            parts += [f'best="{name}"', f"greater_is_better={greater}"]
        return [f"checkpoints={self.want('treadle.checkpoint', 'Policy')}({', '.join(parts)})"] if parts else []

    # The training ----------------------------------------------------------------------------------------------

    def train_call(self, node: ast.Call) -> str:
        """Return the call that trains, in the place of `node`."""
        column = " " * _statement_of(self.source, node).col_offset
        return _call(f"{self.name}.train", [*self._data(), *self._length(), *self._when(), *self._resume(node)], column)

    def _data(self) -> list[str]:
        found = [self.own("train_dataset") or "train_dataset"]
        if self.own("train_dataset") is None:
            self.source.note(self.node, "it has no train_dataset; pass it to train")
        if self.own("eval_dataset") is not None:
            found.append(f"eval_dataset={self.own('eval_dataset')}")
        found.append(f"per_device_batch_size={self.text('per_device_train_batch_size', '8')}")
        found += [f"collate_fn={self.collator()}", *self._loaders()]
        return found

    def collator(self) -> str:
        """Return what joins samples into a batch."""
        given, tokenizer = self.own("data_collator"), self.own("processing_class") or self.own("tokenizer")
        if given is not None:
            return given
        if tokenizer is not None:
            return f"{self.want('transformers', 'DataCollatorWithPadding')}({tokenizer})"
        return self.want("transformers", "default_data_collator")

    def eval_size(self) -> str:
        """Return the samples of a batch of evaluations."""
        return str(self.text("per_device_eval_batch_size", "8"))

    def _loaders(self) -> list[str]:
        options = [f'"{ours}": {self.text(name)}' for name, ours in LOADER.items() if name in self.asked]
        sampling = self.value("train_sampling_strategy", "random")
        if sampling == "sequential":
            options.insert(0, '"shuffle": False')
        elif sampling != "random":
            self.tell("train_sampling_strategy", "pass a DataLoader with a sampler of your own to train")
        found = [f"train_dataloader_kwargs={{{', '.join(options)}}}"] if options else []
        if self.own("eval_dataset") is not None and self.eval_size() != self.text("per_device_train_batch_size", "8"):
            found.append(f'eval_dataloader_kwargs={{"batch_size": {self.eval_size()}}}')
        return found

    def _length(self) -> list[str]:
        most = self.value("max_steps", -1)
        if most is None or most > 0:
            found = [f"max_steps={self.text('max_steps')}"]
        else:
            epochs = self.value("num_train_epochs", 3)
            whole = isinstance(epochs, (int, float)) and float(epochs).is_integer()
            if epochs is not None and not whole:
                self.tell("num_train_epochs", "a part of an epoch is not; pass max_steps=")
            found = [f"num_epochs={int(epochs) if whole else self.text('num_train_epochs', '3')}"]
        if self.text("gradient_accumulation_steps", "1") != "1":
            found.append(f"gradient_accumulation_steps={self.text('gradient_accumulation_steps')}")
        if self.value("max_grad_norm", 1.0) != 0:
            found.append(f"clip_norm={self.text('max_grad_norm', '1.0')}")
        return found + self._schedule()

    def _schedule(self) -> list[str]:
        pair = self.given.get("optimizers")
        if isinstance(pair, ast.Tuple) and len(pair.elts) == 2 and not isinstance(pair.elts[1], ast.Constant):
            return [f"create_scheduler_fn=lambda optimizer: {self.source.segment(pair.elts[1])}"]
        kind = str(self.value("lr_scheduler_type", "linear"))
        if kind not in SCHEDULES:
            told = (
                "pass create_scheduler_fn=lambda optimizer: ReduceLROnPlateau(optimizer)" if "plateau" in kind else ""
            )
            self.tell("lr_scheduler_type", told or "pass create_scheduler_fn=, a function of the optimizer")
            return []
        if kind == "constant":
            return []
        # transformers' own, so that the rates are the same.
        scheduler = self.want("transformers", "get_scheduler")
        more = self.text("lr_scheduler_kwargs")
        rest = f", scheduler_specific_kwargs={more}" if more else ""
        warmup = self.value("warmup_steps", self.value("warmup_ratio", 0))
        text = self.text("warmup_steps", self.text("warmup_ratio", "0"))
        if warmup is None or 0 < warmup < 1:
            text = f"{self.want('', 'math')}.ceil(steps * {text})" if warmup is not None else text
        called = f'lambda optimizer, steps: {scheduler}("{kind}", optimizer, {text}, steps{rest})'
        partial = self.want("functools", "partial")
        return [_broken(f"create_scheduler_fn={partial}(", [called, f"steps={self._steps()}"], ")")]

    def _steps(self) -> str:
        most = self.value("max_steps", -1)
        if most is None or most > 0:
            return str(self.text("max_steps"))
        run = self.want("treadle", "TrainerPlaceholderValues")
        return f"{run}.NUM_EPOCHS * {run}.NUM_UPDATE_STEPS_PER_EPOCH"

    def _when(self) -> list[str]:
        found = []
        if self.own("eval_dataset") is not None:
            found.append(f"eval_every={self._eval_every()}")
        found += self._log_every()
        saving = self.value("save_strategy", "steps")
        if saving == "epoch":
            found.append('save_every="1 epoch"')
        elif saving == "steps" and "output_dir" in self.asked:
            found.append(f"save_every={self._steps_of('save_steps', '500')}")
        return found

    def _eval_every(self) -> str:
        when = self.value("eval_strategy", self.value("evaluation_strategy", "no"))
        if when == "steps":
            return self._steps_of("eval_steps", str(self.text("logging_steps", "500")))
        return '"1 epoch"' if when == "epoch" else "None"

    def _log_every(self) -> list[str]:
        when = self.value("logging_strategy", "steps")
        if when == "no":
            return []
        return ['log_every="1 epoch"' if when == "epoch" else f"log_every={self._steps_of('logging_steps', '500')}"]

    def _steps_of(self, name: str, default: str) -> str:
        value = self.value(name, 1)
        if isinstance(value, float) and value < 1:
            self.tell(name, "a share of the run is no interval here; write a number of steps")
        return str(self.text(name, default))

    def _resume(self, node: ast.Call) -> list[str]:
        given = {str(one.arg): one.value for one in node.keywords} | dict(
            zip(("resume_from_checkpoint",), node.args, strict=False)
        )
        place = given.get("resume_from_checkpoint")
        if place is None or literal(place) is False or (isinstance(place, ast.Constant) and place.value is None):
            return []
        if literal(place) is True:
            return ['resume="auto"']
        text = "checkpoints of transformers cannot be resumed from; from_pretrained reads their weights"
        self.source.note(node, f"resume_from_checkpoint={self.source.segment(place)}: {text}")
        return []

    def evaluate_call(self, node: ast.Call) -> str:
        """Return the call that evaluates, in the place of `node`."""
        given = (
            node.args[0] if node.args else next((one.value for one in node.keywords if one.arg == "eval_dataset"), None)
        )
        data = self.own("eval_dataset") if given is None else self.source.segment(given)
        if data is None:
            self.source.note(node, "evaluate() has no data; pass a dataset")
            data = "eval_dataset"
        parts = [data, f"per_device_batch_size={self.eval_size()}", f"collate_fn={self.collator()}"]
        return _call(f"{self.name}.evaluate", parts, " " * _statement_of(self.source, node).col_offset)


# What else of a program changes -----------------------------------------------------------------------------------


def early_stopping(source: Source, rewriter: Rewriter, node: ast.Call, watching: str) -> str:
    """Return our early stopping for theirs, with their defaults."""
    given = dict(zip(("early_stopping_patience", "early_stopping_threshold"), node.args, strict=False))
    given |= {str(one.arg): one.value for one in node.keywords}
    texts = {name: source.segment(value) for name, value in given.items()}
    texts.setdefault("early_stopping_threshold", "0.0")
    parts = [f"{name}={text}" for name, text in texts.items()]
    return f"{rewriter.want('treadle.callbacks', 'EarlyStoppingCallback')}({', '.join([*parts, watching])})"


def _change_early_stopping(source: Source, rewriter: Rewriter, trainers: dict[str, _Trainer]) -> None:
    """Change what stops early where it is not written in the call of the trainer."""
    for node in source.find(ast.Call):
        inside = any(_is_within(source, node, one.statement) for one in trainers.values())
        if _ends_with(node.func, "EarlyStoppingCallback") and not inside:
            watched = {one.watching() for one in trainers.values()}
            if len(watched) == 1:
                source.replace(node, early_stopping(source, rewriter, node, *watched))
            else:
                source.note(
                    node,
                    "say what it watches: watch_metric=, greater_is_better=; early_stopping_threshold=0.0 is theirs",
                )


def _is_within(source: Source, node: ast.AST, outer: ast.AST) -> bool:
    above: ast.AST | None = node
    while above is not None and above is not outer:
        above = source.parent(above)
    return above is outer


def _statement_of(source: Source, node: ast.AST) -> ast.stmt:
    above: ast.AST | None = node
    while above is not None and not isinstance(above, ast.stmt):
        above = source.parent(above)
    assert isinstance(above, ast.stmt)
    return above


def _change_uses(source: Source, rewriter: Rewriter, trainers: dict[str, _Trainer]) -> None:
    """Change what is asked of trainers, and what is read of what they return."""
    evaluated: set[str] = set()
    trained: set[str] = set()
    for node in source.find(ast.Call):
        func = node.func
        if not isinstance(func, ast.Attribute) or (trainer := trainers.get(ast.unparse(func.value))) is None:
            continue
        names = _assigned(source, node)
        if func.attr == "train":
            trained |= names
            source.replace(node, trainer.train_call(node))
        elif func.attr == "evaluate":
            evaluated |= names
            source.replace(node, trainer.evaluate_call(node))
        elif func.attr == "save_model":
            place = source.segment(node.args[0]) if node.args else trainer.text("output_dir") or '"model"'
            source.replace(node, f"{trainer.name}.get_model().save_pretrained({place})")
            if trainer.own("processing_class") or trainer.own("tokenizer"):
                source.note(node, "save the tokenizer, too: tokenizer.save_pretrained(...)")
    for node in source.find(ast.Attribute):
        if ast.unparse(node.value) in trainers and node.attr in OF_TRAINER:
            source.note(node, f"trainer.{node.attr}: {OF_TRAINER[node.attr]}")
        elif _comes_from(node.value, trained, "train", trainers):
            _change_result(source, node)
    for node in source.find(ast.Subscript):
        if _comes_from(node.value, evaluated, "evaluate", trainers):
            _change_metric(source, node)


def _comes_from(node: ast.expr, names: set[str], method: str, trainers: dict[str, _Trainer]) -> bool:
    """Whether an expression is what a method of a trainer returned, by a name that was given to it or at once."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == method and ast.unparse(node.func.value) in trainers
    return isinstance(node, ast.Name) and node.id in names


def _assigned(source: Source, node: ast.Call) -> set[str]:
    parent = source.parent(node)
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return {one.id for one in targets if isinstance(one, ast.Name)}


def _change_result(source: Source, node: ast.Attribute) -> None:
    if node.attr == "global_step":
        end = source.span(node)[1]
        source.replace_span((end - len(node.attr), end), "steps")
    else:
        source.note(node, f"the result has no {node.attr}: its history has the losses of epochs, as train_loss_epoch")


def _change_metric(source: Source, node: ast.Subscript) -> None:
    name = literal(node.slice)
    if name == "eval_loss":
        source.replace(node.slice, '"evaluation_loss"')
    elif isinstance(name, str) and name.startswith("eval_"):
        source.replace(node.slice, f'"{name.removeprefix("eval_")}"')


def _call(called: str, parts: list[str], column: str) -> str:
    """Return a call, its arguments below each other where a line would be too long."""
    line = f"{called}({', '.join(parts)})"
    if len(column) + len(line) <= WIDTH:
        return line
    inner = textwrap.indent("".join(f"{part},\n" for part in parts), f"{column}    ")
    return f"{called}(\n{inner}{column})"


def _broken(opening: str, parts: list[str], closing: str) -> str:
    """Return parts between brackets, below each other where a line would be too long."""
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) <= WIDTH - 8:
        return line
    return f"{opening}\n{textwrap.indent(''.join(f'{part},{chr(10)}' for part in parts), '    ')}{closing}"
