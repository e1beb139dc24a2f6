"""What a model of transformers says of itself: how its layers are divided, and what it goes through one by one.

Nothing of transformers is imported: a model that has the same attributes is understood as well.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import Parameter, signature
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.memory.activation_checkpointing import repeated_blocks
from treadle.parallel.plan import Plan

TRANSLATED = {
    "colwise": "column",
    "rowwise": "row",
    "embedding_rowwise": "row",
    "colwise_rep": "column_gathered",
    "colwise_gather_output": "column_gathered",
    "replicated_with_grad_allreduce": "summed",
}
"""The styles of transformers that a plan knows."""
DERIVED: Mapping[str, Mapping[str, str]] = {
    "BertLayer": {
        **dict.fromkeys(("attention.self.query", "attention.self.key", "attention.self.value"), "column"),
        **{"attention.output.dense": "row", "intermediate.dense": "column", "output.dense": "row"},
    },
    "ViTLayer": {
        **dict.fromkeys(("attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.fc1"), "column"),
        **{"attention.o_proj": "row", "mlp.fc2": "row"},
    },
}
"""Plans of blocks whose models have none of their own, by the class of the block."""
IMPOSSIBLE = {
    "GPT2Block": "one layer (c_attn) makes query, key and value side by side, and each process would get another mix "
    "of them; use shard= or pipeline=, or a model of the Llama kind",
    "T5Block": "attention adds a bias for all heads, and each process would have some of them; use shard=",
}
"""Why blocks cannot be divided, by their class."""


def is_pretrained(model: nn.Module) -> bool:
    """Whether a model says of itself what those of transformers say."""
    return hasattr(model, "base_model_prefix") and hasattr(model, "_no_split_modules") and hasattr(model, "config")


# Layers over processes ------------------------------------------------------------------------------------------


def tensor_plan_of(model: nn.Module, plan: Plan) -> Mapping[str, str]:
    """Return the tensor plan for a model: that of the plan, the model's own, or what one of transformers says.

    Raises:
        ConfigError: Nobody says how layers are divided, or not so that they can be.
    """
    if plan.tensor_plan is not None:
        return plan.tensor_plan
    own = getattr(model, "tensor_plan", None)
    if own is not None:
        made: Mapping[str, str] = own()
        return made
    if is_pretrained(model):
        return _found_tensor_plan(model, plan.tensor)
    raise ConfigError(
        f"Plan: tensor={plan.tensor}, but {type(model).__name__} has no tensor_plan(); pass "
        "tensor_plan={'blocks.*.outward': 'column', ...}"
    )


def _found_tensor_plan(model: Any, ranks: int) -> dict[str, str]:
    kind = type(model).__name__
    said = dict(getattr(model, "tp_plan", None) or {})
    unknown = sorted({style for style in said.values() if style not in TRANSLATED})
    if unknown:
        raise ConfigError(
            f"Plan: tensor={ranks}: the plan that {kind} has for its layers asks for {unknown}, which is not known "
            f"here; pass tensor_plan= with 'column' and 'row', or use shard= or pipeline="
        )
    found = {pattern: TRANSLATED[style] for pattern, style in said.items()} or _derived_tensor_plan(model, ranks)
    _check_heads(model, ranks)
    return _without_tied(model, found)


def _derived_tensor_plan(model: nn.Module, ranks: int) -> dict[str, str]:
    kind, blocks = type(model).__name__, repeated_blocks(model)
    classes = sorted({type(block).__name__ for _, block in blocks})
    if len(classes) == 1 and classes[0] in DERIVED:
        lists = sorted({name.rpartition(".")[0] for name, _ in blocks})
        return {f"{one}.*.{layer}": style for one in lists for layer, style in DERIVED[classes[0]].items()}
    reason = next((IMPOSSIBLE[name] for name in classes if name in IMPOSSIBLE), None)
    if reason is not None:
        raise ConfigError(f"Plan: tensor={ranks}: the layers of {kind} cannot be divided: {reason}")
    raise ConfigError(
        f"Plan: tensor={ranks}, but {kind} has no plan for its layers; pass tensor_plan={{'blocks.*.outward': "
        "'column', ...}, or use shard= or pipeline="
    )


def _check_heads(model: Any, ranks: int) -> None:
    """Refuse a number of ranks that would cut a head of attention in two."""
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(model.config, name, None)
        if isinstance(heads, int) and heads % ranks:
            raise ConfigError(
                f"Plan: tensor={ranks} does not divide the {heads} heads of {type(model).__name__} (config.{name}); "
                "choose a number that does"
            )


def _without_tied(model: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """Leave out layers whose weight is another layer's, too, as that of a tied head: they stay whole."""
    users: dict[int, int] = {}
    for module in model.modules():
        for weight in module._parameters.values():
            if weight is not None:
                users[id(weight)] = users.get(id(weight), 0) + 1
    tied = {
        name
        for name, module in model.named_modules()
        if any(users[id(weight)] > 1 for weight in module._parameters.values() if weight is not None)
    }
    return {pattern: style for pattern, style in plan.items() if pattern not in tied}


# Stages ---------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """What data goes through in a model: modules before its blocks, the blocks, and what comes after them.

    Attributes:
        model: The model.
        base: The part of it that has the blocks; it may be the model itself.
        path: The names that lead from there to the list of blocks.
        blocks: The blocks.
        before: Names of the modules of the base that come before them.
        after: Names of its modules, with weights, that come after them.
    """

    model: nn.Module
    base: nn.Module
    path: tuple[str, ...]
    blocks: tuple[nn.Module, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


def sections_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that data goes through one after the other in a model of transformers.

    Raises:
        ConfigError: They are not in one line, or it cannot be told what comes before the blocks and what after.
    """
    line = _line_of(model)
    return [Section(line, place, place + 1) for place in range(len(line.blocks) + 2)]


def _line_of(model: Any) -> Line:
    kind = type(model).__name__
    base = getattr(model, model.base_model_prefix, model)
    lists = sorted({name.rpartition(".")[0] for name, _ in repeated_blocks(base)})
    if len(lists) != 1:
        raise ConfigError(
            f"Plan: pipeline: {kind} has {len(lists)} rows of blocks ({', '.join(lists)}), and stages pass on one "
            "hidden state; pass stages=, or use shard= or tensor="
        )
    path = tuple(lists[0].split("."))
    names = [name for name, _ in base.named_children()]
    place = names.index(path[0])
    before = [name for name in names[:place] if _is_replaced(getattr(base, name))]
    after = [name for name in names[place + 1 :] if _has_weights(getattr(base, name))]
    # Told by the order in which the model made its modules, which a norm at the end may be out of.
    doubtful = [name for name in before if "norm" in type(getattr(base, name)).__name__.lower()]
    direct = [name for module in _along(base, path[:-1]) for name in module._parameters]
    if doubtful or direct:
        raise ConfigError(
            f"Plan: pipeline: whether {doubtful or direct} of {type(base).__name__} come before or after its blocks "
            "cannot be told; pass stages=, or use shard= or tensor="
        )
    blocks = base.get_submodule(lists[0])
    return Line(model, base, path, tuple(blocks), tuple(before), tuple(after))


def _along(base: nn.Module, path: Sequence[str]) -> list[nn.Module]:
    return [base.get_submodule(".".join(path[:length])) for length in range(len(path) + 1)]


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _is_replaced(module: nn.Module) -> bool:
    # What has neither weights nor randomness, such as rotary positions, every stage computes for itself.
    return _has_weights(module) or isinstance(module, nn.Dropout)


class Section(nn.Module):
    """Some of the modules that data goes through in a model of transformers, called by the model's own `forward`.

    The model's code makes masks and positions, which all blocks take, from the batch. So each section calls that code,
    on a copy of the model's outer modules in which what is elsewhere passes hidden states through. The copy has the
    same blocks, and so the same weights.

    Args:
        line: What data goes through.
        begin: The first module of this section: 0 is what comes before the blocks, 1 the first block.
        end: The one after the last; what comes after the blocks is the last of all.
    """

    def __init__(self, line: Line, begin: int, end: int) -> None:
        super().__init__()
        self._line, self._begin, self._end = line, begin, end
        self._received = Received()
        self.is_last = end == len(line.blocks) + 2
        self.kind = "before" if begin == 0 else "after" if self.is_last else "block"
        base = self._base()
        on_top = self.is_last and line.model is not line.base
        self.body = _copied(line.model, {line.model.base_model_prefix: base}) if on_top else base  # type: ignore[dict-item]
        self._names = None if self.is_last else _named(type(line.base).forward)
        self._cache = "use_cache" in _named(type(self.body).forward)

    def joined(self, last: "Section") -> Self:
        """Return this section with all up to the `last` one, as one."""
        return type(self)(self._line, self._begin, last._end)

    def _base(self) -> nn.Module:
        line, place = self._line, {id(block): place for place, block in enumerate(self._line.blocks, start=1)}
        replaced: dict[str, nn.Module] = {}
        if self._begin > 0:
            dtype = next(weight.dtype for weight in line.model.parameters())
            replaced |= {name: Shell(line.base.get_submodule(name), self._received, dtype) for name in line.before}
        if not self.is_last:
            replaced |= {name: Passing() for name in line.after}
        blocks = nn.ModuleList(self._block(block, place[id(block)]) for block in line.blocks)
        inner: nn.Module = blocks
        for depth in range(len(line.path) - 1, 0, -1):
            outer = line.base.get_submodule(".".join(line.path[:depth]))
            inner = _copied(outer, {line.path[depth]: inner})
        return _copied(line.base, {**replaced, line.path[0]: inner})

    def _block(self, block: nn.Module, place: int) -> nn.Module:
        if self._begin <= place < self._end:
            return block
        return Passing(block, self._received if place < self._begin else None)

    def forward(self, hidden: Any = None, **batch: Any) -> Any:
        """Return hidden states; of the last section what the model returns.

        Args:
            hidden: The hidden states from the section before; the first one takes what it needs from the batch.
            batch: The batch, by the names of the model.
        """
        arguments = {name: value for name, value in batch.items() if self._names is None or name in self._names}
        if self._cache:
            arguments["use_cache"] = False
        self._received.hidden = hidden if self._begin > 0 else None
        try:
            outputs = self.body(**arguments)
        finally:
            self._received.hidden = None
        if self.is_last:
            return outputs
        result: Tensor = outputs.last_hidden_state
        return result


class Received:
    """Where a section keeps the hidden states that came from the one before, while it is called."""

    hidden: Tensor | None = None


class Passing(nn.Module):
    """Stands for a module that is elsewhere: passes on what it is called with, or what was received.

    Args:
        block: The module; what it says of itself in plain values is said here, too.
        received: Where the hidden states are that were received; None passes on what comes.
    """

    def __init__(self, block: nn.Module | None = None, received: Received | None = None) -> None:
        super().__init__()
        for name, value in {} if block is None else vars(block).items():
            if isinstance(value, (str, int, float)) and name not in vars(self):
                setattr(self, name, value)
        self._received = received

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """Return the hidden states."""
        return hidden if self._received is None else self._received.hidden


class Shell(nn.Module):
    """Stands for what comes before the blocks where hidden states come from another process.

    The model's code may look at the types of its weights, which take no memory here.

    Args:
        module: What it stands for.
        received: Where the hidden states are.
        dtype: The type of weights that are not here.
    """

    def __init__(self, module: nn.Module, received: Received, dtype: torch.dtype) -> None:
        super().__init__()
        self._received = received
        # Beside torch's registers: these are no weights of this process.
        vars(self).update({name: _hollow_copy(part, dtype) for name, part in module.named_children()})
        vars(self).update(_types_of(module, dtype))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """Return the hidden states."""
        return self._received.hidden


def _hollow_copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    made = _copied(module, {name: _hollow_copy(part, dtype) for name, part in module.named_children()})
    made._parameters = _types_of(module, dtype)
    return made


def _types_of(module: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """Return, for the weights of a module itself, what has nothing but their type: they may be gone already."""
    return {
        name: torch.empty(0, dtype=dtype if weight is None else weight.dtype, device="meta")
        for name, weight in module._parameters.items()
    }


def _copied(module: nn.Module, parts: Mapping[str, nn.Module]) -> nn.Module:
    """Return a copy of a module with the same weights, and other modules in it by name."""
    made = copy(module)
    made._parameters, made._buffers = dict(module._parameters), dict(module._buffers)
    made._modules = {**module._modules, **parts}
    return made


def _named(forward: Callable[..., Any]) -> frozenset[str]:
    """Return the arguments that a `forward` names."""
    parameters = list(signature(forward).parameters.values())[1:]
    return frozenset(
        one.name for one in parameters if one.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    )
