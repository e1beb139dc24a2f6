"""Hand-written loops: epochs, batches, backward and step. What is understood becomes a trainer; what is not, a
list of what to change, by line."""

import ast
import textwrap
from dataclasses import dataclass, field
from typing import Any

from treadle.tools.migrate.imports import LONGEST
from treadle.tools.migrate.source import Source, literal

SHOWN = ("print", "info", "log", "add_scalar", "add_scalars", "set_postfix", "set_description", "write", "log_metrics")
"""Calls that only show numbers."""
OF_TRAINER = ("precision", "device", "run_dir")
OF_TRAIN = ("gradient_accumulation_steps", "clip_norm", "gradient_clip_value")
"""Options that a loop has, as arguments of the trainer and of its `train`."""
CHECKLIST: dict[str, str] = {
    "zero_grad": "leave it out: the trainer does this before each update",
    "backward": "leave it out: return the loss, as it is, from calculate_train_batch_loss of a treadle.Trainer",
    "unscale_": "leave it out: precision='fp16' scales and unscales",
    "clip_grad_norm_": "clip_norm= of trainer.train does this",
    "clip_grad_value_": "gradient_clip_value= of trainer.train does this",
    "step": "leave it out: the trainer steps the optimizer, and the scheduler that create_scheduler_fn= returns",
    "autocast": "precision='bf16' or 'fp16' of the trainer does this",
    "GradScaler": "precision='fp16' of the trainer does this",
    "no_grad": "an evaluation is calculate_eval_batch_loss, on eval_dataset= of trainer.train",
    "save": "run_dir= of the trainer keeps checkpoints that resume; 'treadle export' makes weights of them",
    "load": "trainer.train(..., resume='auto') resumes the run in run_dir=; weights alone are loaded as before",
    "all_reduce": "leave it out: start the program with torchrun, and gradients are averaged",
    "DistributedDataParallel": "leave it out: start the program with torchrun",
}
"""What becomes of the calls of a loop, by the last part of their names."""


def is_loop(tree: ast.Module) -> bool:
    """Whether a program computes gradients and steps an optimizer by itself."""
    called = {_called_name(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {"backward", "step"} <= called


def migrate(source: Source) -> None:
    """Turn a loop into a trainer, or say for each line what to change."""
    inner = [node for node in source.find(ast.For) if _has_backward(node.body)]
    inner = [node for node in inner if not any(other is not node and other in ast.walk(node) for other in inner)]
    if not inner:
        _tell_checklist(source, "the loop over batches was not found")
        return
    if len(inner) > 1:
        _tell_checklist(source, f"there are {len(inner)} loops with a backward pass, in lines {_line_range(inner)}")
        return
    outer = source.parent(inner[0])
    if not isinstance(outer, ast.For) or inner[0] not in outer.body:
        _tell_checklist(source, "the loop over batches is not directly in a loop over epochs")
        return
    loop = _Loop(source, outer, inner[0])
    loop.read()
    if loop.unknown:
        for node, why in loop.unknown:
            source.note(node, f"not understood: {why}; nothing was changed")
        _tell_checklist(source, "")
        return
    loop.write()


def _has_backward(body: list[Any]) -> bool:
    return any(
        isinstance(node, ast.Call) and _called_name(node) == "backward" for one in body for node in ast.walk(one)
    )


def _line_range(nodes: list[Any]) -> str:
    return ", ".join(str(node.lineno) for node in nodes)


def _called_name(node: Any) -> str:
    """Return the last part of what a call calls."""
    called = node.func if isinstance(node, ast.Call) else node
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _tell_checklist(source: Source, why: str) -> None:
    """Say what becomes of each line of a loop that stays as it is."""
    if why:
        source.note(0, f"{why}, so that nothing was changed; what becomes of its lines is listed")
    for node in source.find(ast.Call):
        if (told := CHECKLIST.get(_called_name(node))) is not None:
            source.note(node, told)


@dataclass
class _Loop:
    """A loop over epochs with a loop over batches in it, and what it is made of."""

    source: Source
    outer: ast.For
    inner: ast.For
    forward: list[Any] = field(default_factory=list)
    moved: list[Any] = field(default_factory=list)
    loss: str = ""
    model: str = ""
    optimizer: str = ""
    scheduler: str = ""
    by_step: bool = False
    options: dict[str, str] = field(default_factory=dict)
    evaluation: str = ""
    counted: str = ""
    whole_windows: bool = True
    divisor: str = ""
    divided: Any = None
    unknown: list[tuple[Any, str]] = field(default_factory=list)
    after_backward: bool = False

    # Reading -------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Take note of every statement."""
        made = _constructors(self.source)
        self.optimizers = {name for name, call in made.items() if ".optim." in f".{call}." or _is_optimizer(call)}
        self.schedulers = {name for name, call in made.items() if "lr_scheduler" in call or call.endswith(("LR", "Lr"))}
        if not (isinstance(self.outer.iter, ast.Call) and _called_name(self.outer.iter) == "range"):
            self._unknown(self.outer, "a loop over epochs that is not over range(...)")
        elif len(self.outer.iter.args) != 1:
            self._unknown(self.outer, "epochs that do not begin at 0: a run resumes by resume='auto'")
        self._read_head()
        for node in self.outer.body:
            if node is self.inner:
                for statement in node.body:
                    self._read_inner(statement)
            else:
                self._read_outer(node)
        if not self.loss:
            self._unknown(self.inner, "the loss is not a name")
        if not self.optimizer:
            self._unknown(self.inner, "no optimizer steps in it")
        if self.outer.orelse or self.inner.orelse:
            self._unknown(self.outer, "an else of a loop")
        epoch = self.outer.target.id if isinstance(self.outer.target, ast.Name) else ""
        for node in self.forward:
            if any(isinstance(one, ast.Name) and one.id in (epoch, self.counted) and one.id for one in ast.walk(node)):
                self._unknown(node, "the loss depends on the number of the epoch or of the batch")

    def _unknown(self, node: Any, why: str) -> None:
        self.unknown.append((node, why))

    def _read_head(self) -> None:
        """Take note of what is iterated, with or without a count or a progress bar."""
        data, target = self.inner.iter, self.inner.target
        if isinstance(data, ast.Call) and _called_name(data) == "enumerate":
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                self._unknown(self.inner, "an enumerate without a count and a batch")
                return
            self.counted = self.source.segment(target.elts[0])
            data, target = data.args[0], target.elts[1]
        if isinstance(data, ast.Call) and _called_name(data) in ("tqdm", "track"):
            data = data.args[0]
        if not isinstance(data, (ast.Name, ast.Attribute)):
            self._unknown(
                self.inner, f"batches are drawn from {self.source.segment(data)}, which is no name of a loader"
            )
        self.data, self.batch = self.source.segment(data), self.source.segment(target)
        self.target = target

    def _read_inner(self, node: Any) -> None:
        if isinstance(node, ast.With) and all(_called_name(item.context_expr) == "autocast" for item in node.items):
            self._read_autocast(node.items[0].context_expr)
            for statement in node.body:
                self._read_inner(statement)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._read_call(node, node.value)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            self._read_assignment(node)
        elif isinstance(node, ast.If):
            self._read_if(node)
        elif not isinstance(node, ast.Pass) and not _is_text(node):
            self._unknown(node, self._shown(node))

    def _shown(self, node: Any) -> str:
        return f"`{self.source.segment(node).splitlines()[0]}`"

    def _read_autocast(self, call: Any) -> None:
        kinds = [ast.unparse(one) for one in [*call.args, *(keyword.value for keyword in call.keywords)]]
        if any("float16" in kind and "bfloat16" not in kind for kind in kinds):
            self.options["precision"] = '"fp16"'
        elif any("bfloat16" in kind for kind in kinds) or any("cpu" in kind for kind in kinds):
            self.options["precision"] = '"bf16"'
        elif any("cuda" in kind for kind in kinds) or "cuda" in ast.unparse(call.func):
            self.options["precision"] = '"fp16"'
        else:
            self._unknown(call, "an autocast without a dtype")

    def _read_call(self, node: Any, call: ast.Call) -> None:
        name = _called_name(call)
        owner = self.source.segment(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if name == "backward":
            self._read_backward(call)
        elif name in ("zero_grad", "update", "unscale_", "synchronize") or (name == "train" and not call.args):
            self.model = owner if name == "train" else self.model
        elif name == "step":
            self._read_step(node, call, owner)
        elif name in ("clip_grad_norm_", "clip_grad_value_") and len(call.args) > 1 and not call.keywords:
            option = "clip_norm" if name == "clip_grad_norm_" else "gradient_clip_value"
            self.options[option] = self.source.segment(call.args[1])
            self.model = self.model or _owner_of_parameters(call.args[0])
        elif name in SHOWN or (name == "append" and "loss" in self.source.segment(call)):
            self._tell_shown(node)
        else:
            self._unknown(node, self._shown(node))

    def _tell_shown(self, node: Any) -> None:
        text = "left out: the loss of each epoch is shown, and in the history of the result"
        self.source.note(node, text, left=False)

    def _read_backward(self, call: ast.Call) -> None:
        assert isinstance(call.func, ast.Attribute)
        self.after_backward = True
        value: Any = call.func.value
        if isinstance(value, ast.Call) and _called_name(value) == "scale" and len(value.args) == 1:
            value = value.args[0]
            self.options["precision"] = '"fp16"'
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            self._divide(value)
            value = value.left
        if call.args or call.keywords:
            self._unknown(call, "a backward with arguments")
        if isinstance(value, ast.Name):
            self.loss = value.id

    def _divide(self, node: ast.BinOp) -> None:
        self.divisor = self.source.segment(node.right)

    def _read_step(self, node: Any, call: ast.Call, owner: str) -> None:
        if call.args and isinstance(call.args[0], ast.Name) and call.args[0].id in self.optimizers:
            self.optimizer, self.options["precision"] = call.args[0].id, '"fp16"'
        elif owner in self.schedulers and not call.args and not call.keywords:
            self.scheduler, self.by_step = owner, self.after_backward and node not in self.outer.body
        elif owner in self.optimizers and not call.args and not call.keywords:
            if self.optimizer and self.optimizer != owner:
                self._unknown(node, "several optimizers step; write their updates as phases (docs/loop.md)")
            self.optimizer = owner
        else:
            self._unknown(node, self._shown(node))

    def _read_assignment(self, node: Any) -> None:
        value = node.value
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        if self._is_move(targets, value):
            return
        name = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""
        divides = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div)
        halves = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div) and ast.unparse(value.left) == name
        if name and "loss" in name and (divides or halves) and self.forward:
            self.divisor = self.source.segment(value if divides else value.right)
        elif self.after_backward or (isinstance(node, ast.AugAssign) and _asks_for_value(value)):
            if _asks_for_value(value) or isinstance(node, ast.AugAssign):
                self._tell_shown(node)
            else:
                self._unknown(node, self._shown(node))
        else:
            self.forward.append(node)

    def _is_move(self, targets: list[Any], value: Any) -> bool:
        """Whether tensors of the batch are only brought to a device."""
        places = list(targets[0].elts) if len(targets) == 1 and isinstance(targets[0], ast.Tuple) else targets
        values = list(value.elts) if isinstance(value, ast.Tuple) else [value]
        if len(places) != len(values):
            return False
        for place, one in zip(places, values, strict=True):
            if not isinstance(one, ast.Call) or not isinstance(one.func, ast.Attribute):
                return False
            if one.func.attr not in ("to", "cuda") or ast.unparse(one.func.value) != ast.unparse(place):
                return False
            if one.func.attr == "to" and one.args and not isinstance(one.args[0], ast.Attribute):
                self.options["device"] = self.source.segment(one.args[0])
        return True

    def _read_if(self, node: ast.If) -> None:
        steps = any(isinstance(one, ast.Call) and _called_name(one) == "step" for one in ast.walk(node))
        every, last = _window_size(node.test)
        if steps and every is not None and not node.orelse:
            self.options["gradient_accumulation_steps"] = self.source.segment(every)
            self.whole_windows = not last
            for statement in node.body:
                self._read_inner(statement)
        elif (
            all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) for one in node.body) and not node.orelse
        ):
            for statement in node.body:
                self._read_inner(statement)
        else:
            self._unknown(node, self._shown(node))

    def _read_outer(self, node: Any) -> None:
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
        names = {_called_name(one) for one in calls}
        evaluates = [one for one in ast.walk(node) if isinstance(one, ast.For)]
        if isinstance(node, (ast.With, ast.For)) and evaluates and not names & {"backward", "step"}:
            self._read_evaluation(node, evaluates[0])
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = _called_name(node.value)
            if name == "eval" and not node.value.args:
                return
            if name == "save":
                self._read_save(node)
            elif name == "set_epoch":
                self._tell_shown(node)
            else:
                self._read_call(node, node.value)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and not names - {
            "len",
            "item",
            "mean",
            "sum",
        }:
            self._tell_shown(node)
        elif not isinstance(node, ast.Pass) and not _is_text(node):
            self._unknown(node, self._shown(node))

    def _read_evaluation(self, node: Any, loop: ast.For) -> None:
        data = loop.iter
        if isinstance(data, ast.Call) and _called_name(data) in ("enumerate", "tqdm"):
            data = data.args[0]
        if self.evaluation or not isinstance(data, (ast.Name, ast.Attribute)):
            self._unknown(node, "an evaluation whose data has no name, or one of several")
            return
        self.evaluation = self.source.segment(data)
        shows_more = [
            ast.unparse(one.target)
            for one in ast.walk(loop)
            if isinstance(one, ast.AugAssign) and not self._is_loss(one.value, loop)
        ]
        text = "eval_dataset= is evaluated after every epoch, by the loss of training"
        if shows_more:
            text += f"; for {', '.join(shows_more)}, pass metrics= to the trainer, such as torchmetrics' Accuracy"
        self.source.note(node, text, left=bool(shows_more))

    def _is_loss(self, value: Any, loop: ast.For) -> bool:
        """Whether a number that an evaluation adds up is its loss, or how many samples there were."""
        named = {ast.unparse(one.targets[0]): one.value for one in ast.walk(loop) if isinstance(one, ast.Assign)}
        losses = {_called_name(one) for node in self.forward for one in ast.walk(node) if isinstance(one, ast.Call)}
        called = {_called_name(one) for one in ast.walk(value) if isinstance(one, ast.Call)}
        for one in ast.walk(value):
            found = named.get(ast.unparse(one)) if isinstance(one, ast.Name) else None
            called |= {_called_name(call) for call in ast.walk(found) if isinstance(call, ast.Call)} if found else set()
        counts = called <= {"len", "size"} and not any(isinstance(one, ast.Compare) for one in ast.walk(value))
        return counts or (
            bool(called & losses - {"item", "len", "size"}) and not called & {"argmax", "max", "eq", "sum"}
        )

    def _read_save(self, node: Any) -> None:
        self.options["run_dir"] = f'"runs/{self.source.path.stem}"'
        text = "run_dir= keeps the run, once an epoch; resume='auto' resumes it, 'treadle export' makes weights of it"
        self.source.note(node, text, left=False)

    # Writing -------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Put the trainer in the place of the loop."""
        source = self.source
        trainer = "TreadleTrainer" if "Trainer" in source.names() else "Trainer"
        accumulation = self.options.get("gradient_accumulation_steps", "")
        last = self.forward[-1]
        if not self.divisor and accumulation and _find_divisor(last, self.source) == accumulation:
            self.divisor, self.divided = accumulation, last
        if self.divisor != accumulation:
            text = f"the loss is divided by {self.divisor or 'nothing'}, and {accumulation or 1} batches make an update"
            source.note(self.inner, f"{text}: here the gradient is the mean over all samples of the update")
        elif accumulation and self.whole_windows:
            text = "batches left over at the end of an epoch make an update of their own here; they were carried over"
            source.note(self.inner, text, left=False)
        indent = " " * self.outer.col_offset
        simple = self._simple()
        lines = [] if simple else self._class(trainer)
        made = trainer if simple else "LoopTrainer"
        loss = simple[1] if simple else "None"
        model = simple[0] if simple else self._model()
        own: dict[str, str] = {key: self.options[key] for key in OF_TRAINER if key in self.options}
        lines.append(_call(f"trainer = {made}", [model, loss, self.optimizer, *_keywords(own)], len(indent)))
        assert isinstance(self.outer.iter, ast.Call)
        told = {"num_epochs": source.segment(self.outer.iter.args[0])}
        told |= {"eval_dataset": self.evaluation} if self.evaluation else {}
        told |= {key: self.options[key] for key in OF_TRAIN if key in self.options}
        if self.scheduler:
            told["create_scheduler_fn"] = f"lambda optimizer: {self.scheduler}"
            told["scheduler_interval"] = '"step"' if self.by_step else '"epoch"'
        lines.append(_call("result = trainer.train", [self.data, *_keywords(told)], len(indent)))
        lead = ["", ""] if not simple and not indent else []
        text = f"\n{indent}".join("\n".join([*lead[1:], *lines]).splitlines())
        source.replace(self.outer, "\n".join(line.rstrip() for line in text.splitlines()))
        self._tell_used_later()
        imported = "from treadle import Trainer" + (f" as {trainer}" if trainer != "Trainer" else "")
        if "size_of(batch)" in text:
            imported += "\nfrom treadle.data import size_of"
        last = [node for node in source.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))][-1:]
        place = source.span(last[0])[1] if last else 0
        source.replace_span((place, place), f"\n{imported}" if last else f"{imported}\n")
        text = "what is drawn (the order of a loader that shuffles, dropout) is drawn in another order, from seed="
        source.note(self.inner, text, left=False)
        made_of = _constructors(source)
        for name in filter(None, (self.data, self.evaluation)):
            if not made_of.get(name, "").endswith("DataLoader"):
                text = f"{name} must be a DataLoader, or data of single samples: a list of batches is taken for samples"
                source.note(self.inner, text)

    def _simple(self) -> tuple[str, str] | None:
        """Return the model and the loss function of `loss = criterion(model(inputs), targets)`; None if it is more."""
        if not isinstance(self.target, ast.Tuple) or len(self.target.elts) != 2 or len(self.forward) not in (1, 2):
            return None
        inputs, targets = (ast.unparse(one) for one in self.target.elts)
        last = self.forward[-1]
        if not isinstance(last, ast.Assign) or ast.unparse(last.targets[0]) != self.loss:
            return None
        call = last.value
        if (
            not isinstance(call, ast.Call)
            or len(call.args) != 2
            or call.keywords
            or ast.unparse(call.args[1]) != targets
        ):
            return None
        outputs = call.args[0]
        if len(self.forward) == 2:
            first = self.forward[0]
            if not isinstance(first, ast.Assign) or ast.unparse(first.targets[0]) != ast.unparse(outputs):
                return None
            outputs = first.value
        if (
            not isinstance(outputs, ast.Call)
            or outputs.keywords
            or [ast.unparse(one) for one in outputs.args] != [inputs]
        ):
            return None
        if not isinstance(outputs.func, ast.Name) or not isinstance(call.func, (ast.Name, ast.Attribute)):
            return None
        return outputs.func.id, self.source.segment(call.func)

    def _model(self) -> str:
        """Return the name of the model: what train() was called on, or whose parameters the optimizer has."""
        if self.model:
            return self.model
        for node in self.source.find(ast.Assign):
            if ast.unparse(node.targets[0]) == self.optimizer and isinstance(node.value, ast.Call) and node.value.args:
                return _owner_of_parameters(node.value.args[0]) or "model"
        return "model"

    def _class(self, trainer: str) -> list[str]:
        """Return a trainer whose loss is what the loop computed."""
        statements = [self._statement(node) for node in self.forward]
        rows = self.target.elts[0] if isinstance(self.target, ast.Tuple) else self.target
        body = [f"{self.batch.strip('()')} = batch"] if self.batch != "batch" else []
        size = f"len({ast.unparse(rows)})"
        if not isinstance(self.target, ast.Tuple):
            size = "size_of(batch)"
        body += [line for one in statements for line in one.splitlines()]
        body.append(f'return {{"loss": {self.loss}, "model_outputs": None, "batch_size": {size}}}')
        return [
            f"class LoopTrainer({trainer}):",
            "    def calculate_train_batch_loss(self, batch):",
            *[f"        {line}" if line else "" for one in body for line in one.splitlines()],
            "",
            "    calculate_eval_batch_loss = calculate_train_batch_loss",
            "",
            "",
        ]

    def _statement(self, node: Any) -> str:
        """Return the text of a statement, without the share of a micro-batch that the trainer takes by itself."""
        text = textwrap.dedent(" " * node.col_offset + self.source.segment(node))
        return f"{self.loss} = {self.source.segment(node.value.left)}" if node is self.divided else text

    def _tell_used_later(self) -> None:
        """Tell of names that the loop computed and that are used behind it."""
        stored = {
            node.id for node in ast.walk(self.outer) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        appended = {
            ast.unparse(node.func.value)
            for node in ast.walk(self.outer)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"
        }
        for node in self.source.find(ast.Name):
            later = node.lineno > (self.outer.end_lineno or 0) and isinstance(node.ctx, ast.Load)
            if later and node.id in stored | appended and node.id not in ("result", "trainer"):
                told = f"{node.id} came from the loop; result.history has what was recorded, by name"
                self.source.note(node, told)


def _call(start: str, arguments: list[str], indent: int) -> str:
    """Return a call, on one line if it fits."""
    line = f"{start}({', '.join(arguments)})"
    if len(line) + indent <= LONGEST:
        return line
    return f"{start}(\n" + "".join(f"    {one},\n" for one in arguments) + ")"


def _find_divisor(node: Any, source: Source) -> str:
    """Return what the value of an assignment is divided by at last; empty if by nothing."""
    value = node.value if isinstance(node, ast.Assign) else None
    return source.segment(value.right) if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div) else ""


def _keywords(values: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _constructors(source: Source) -> dict[str, str]:
    """Return what the names of a program were made by, where that is one call."""
    return {
        node.targets[0].id: ast.unparse(node.value.func)
        for node in source.find(ast.Assign)
        if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call)
    }


def _is_optimizer(called: str) -> bool:
    import torch

    kind = getattr(torch.optim, called.rpartition(".")[2], None)
    return isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)


def _owner_of_parameters(node: Any) -> str:
    """Return whose `parameters()` an expression is."""
    called = node.func if isinstance(node, ast.Call) else None
    return ast.unparse(called.value) if isinstance(called, ast.Attribute) and called.attr == "parameters" else ""


def _asks_for_value(node: Any) -> bool:
    return any(isinstance(one, ast.Call) and _called_name(one) in ("item", "float", "detach") for one in ast.walk(node))


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _window_size(test: Any) -> tuple[Any, bool]:
    """Return how many batches make an update, and whether the rest of an epoch does: `(i + 1) % 4 == 0 or ...`."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    for part in parts:
        left = part.left if isinstance(part, ast.Compare) and literal(part.comparators[0]) == 0 else None
        if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(left.left, ast.BinOp):
            return left.right, len(parts) > 1
    return None, False
