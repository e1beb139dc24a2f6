"""Methods to override: a subclass that misspells one would be ignored without a word, and is refused instead."""

from collections import Counter
from collections.abc import Iterable, Mapping
from inspect import unwrap
from types import CodeType, FunctionType

from treadle.callback import EVENTS
from treadle.errors import ConfigError

LIBRARIES = ("treadle", "torch", "builtins", "abc", "typing")
"""Packages whose classes are not the user's."""


TRAINER_VERBS = (
    "create_train_dataloader",
    "get_default_train_dl_kwargs",
    "create_eval_dataloader",
    "get_default_eval_dl_kwargs",
    "create_scheduler",
    "training_run_start",
    "train_epoch_start",
    "calculate_train_batch_loss",
    "calculate_gradients",
    "apply_gradients",
    "normalise_gradients",
    "backward_step",
    "optimizer_step",
    "scheduler_step",
    "optimizer_zero_grad",
    "train_epoch_end",
    "eval_epoch_start",
    "calculate_eval_batch_loss",
    "update_metrics",
    "eval_epoch_end",
    "calculate_prediction",
    "training_run_epoch_end",
    "training_run_end",
    "evaluation_run_start",
    "evaluation_run_end",
    "_prepare_model_and_optimizer",
    "_prepare_dataloaders",
    "_create_run_config",
    "_run_training",
    "_run_train_epoch",
    "_run_eval_epoch",
    "_run_evaluation",
    "_clip_gradients",
    "_update_loss_tracker",
    "_add_epoch_loss_to_run_history",
)
"""The methods of `Trainer` that users override."""

INSTEAD = {
    "training_step": "define calculate_train_batch_loss(self, batch), or a treadle.lightning.StepModel",
    "validation_step": "define calculate_eval_batch_loss(self, batch), or a treadle.lightning.StepModel",
    "compute_loss": "define calculate_train_batch_loss(self, batch)",
    "configure_optimizers": "pass optimizer= to the trainer",
    "_create_accelerator": "for mixed precision pass precision='bf16' or 'fp16' to the trainer",
    "_create_callback_handler": "pass callbacks= to the trainer",
    "_prepare_model_optimizer_and_dataloaders": "override _prepare_model_and_optimizer or _prepare_dataloaders",
    "_check_eval_batch_size": "an evaluation counts every sample once, whatever the size of its batches",
}
"""Methods that trainers of other libraries call, and what to write for them."""


def check_trainer_class(kind: type, base: type) -> None:
    """Refuse a subclass of `Trainer`, which is `base`, with a method that is never called.

    Raises:
        ConfigError: It has a misspelt method, an event, or a method that another library would call.
    """
    events = {event: _for_event(event) for event in EVENTS}
    refuse_misspelt(kind, TRAINER_VERBS, {**events, **INSTEAD})
    within, loop = "_perform_forward_and_backward_passes", "_run_train_epoch"
    if getattr(kind, within) is not getattr(base, within) and getattr(kind, loop) is getattr(base, loop):
        raise ConfigError(
            f"{kind.__name__}.{within} is called by nobody but a {loop} of your own; "
            "override calculate_train_batch_loss or backward_step"
        )


def _for_event(event: str) -> str:
    verb = event.removeprefix("on_")
    meant = f"the method of a trainer for this moment is {verb!r}" if verb in TRAINER_VERBS else "write one with it"
    return f"events are for callbacks; {meant}"


def refuse_misspelt(kind: type, verbs: Iterable[str], others: Mapping[str, str] | None = None) -> None:
    """Refuse a class of the user's with a method that is nearly one of `verbs`, and that nobody calls.

    A method whose name occurs in the class's own code, or in its `custom_methods`, is the user's own.

    Args:
        kind: The class.
        verbs: The methods that are called if a subclass has them.
        others: Names that users of other libraries expect to be called, and what to do instead.

    Raises:
        ConfigError: There is such a method.
    """
    known = list(verbs)
    for name in own_methods(kind):
        instead = (others or {}).get(name)
        near = None if instead is not None else nearest(name, known)
        if instead is None and near is None:
            continue
        hint = f"; did you mean {near!r}? If it is a method" if instead is None else f": {instead}. If it is a method"
        raise ConfigError(
            f"{kind.__name__}.{name} is called by nobody{hint} of your own that others call, list it in custom_methods."
        )


def own_methods(kind: type) -> list[str]:
    """Return the names of methods that a class of the user's adds to those of its parents, and does not use itself."""
    own = [one for one in kind.__mro__ if one.__module__.partition(".")[0] not in LIBRARIES]
    if kind not in own:
        return []
    methods = [(name, getattr(value, "__func__", value)) for one in own for name, value in vars(one).items()]
    # Some are wrapped when their class is made.
    functions = [(name, unwrap(method)) for name, method in methods if isinstance(method, FunctionType)]
    mentions = [(name, _names_in(function.__code__)) for name, function in functions]
    known = {name for one in kind.__mro__ if one not in own for name in vars(one)}
    known |= set(getattr(kind, "custom_methods", ()))
    # One that only mentions itself, as `super().name()` does, is used by nobody.
    used = {name for name, _ in mentions if any(name in names for by, names in mentions if by != name)}
    return [name for name, _ in mentions if name not in known and name not in used]


def nearest(name: str, verbs: Iterable[str]) -> str | None:
    """Return the method that `name` is a misspelling of; None if there is none, or if it is one itself.

    Words may be misspelt, joined or in another order; another word makes another method.

    >>> nearest("calculate_trian_batch_loss", ["calculate_train_batch_loss", "train_epoch_end"])
    'calculate_train_batch_loss'
    >>> nearest("calculate_test_batch_loss", ["calculate_train_batch_loss", "calculate_eval_batch_loss"])
    """
    known = list(verbs)
    if name in known:
        return None
    return next((verb for verb in known if _is_slip(name, verb)), None)


def _is_slip(name: str, verb: str) -> bool:
    given, meant = name.lower().strip("_").split("_"), verb.lower().strip("_").split("_")
    if "".join(given) == "".join(meant) or Counter(given) == Counter(meant):
        return True
    return len(given) == len(meant) and all(_is_typo(one, other) for one, other in zip(given, meant, strict=True))


def _is_typo(one: str, other: str) -> bool:
    """Whether two words are the same, but for a letter or two that is wrong, missing, too many or out of place.

    A number is no slip: `loss2` is there besides `loss`.
    """
    if any(letter.isdigit() for letter in one):
        return one == other
    return one == other or _edits(one, other) <= (1 if max(len(one), len(other)) < 6 else 2)


def _edits(one: str, other: str) -> int:
    """Return how many letters must be put in, taken out, changed or swapped with their neighbours."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        row = [i]
        for j, wanted in enumerate(other, start=1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def _names_in(code: CodeType) -> set[str]:
    """Return every name and text that a function's code, and that of functions within it, mentions."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names_in(constant)
        elif isinstance(constant, str):
            # Texts count as mentions: `getattr(self, "name")` is a call like any other.
            found.add(constant)
    return found
