"""The parts of a run, made from its config."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, open_dict
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from treadle.config import ConfigDict, get_config, instantiate, try_get_key
from treadle.config.arguments import accepted_names, known_names
from treadle.config.nodes import is_lazy, is_plain_mapping
from treadle.config.signatures import call_target
from treadle.data import make_loader
from treadle.engine.config.keys import check_keys
from treadle.errors import ConfigError
from treadle.memory.activation_checkpointing import matching_any, recompute, repeated_blocks

# Activations that are computed again in the backward pass instead of being kept


BLOCKS = ("TransformerLayer", "TransformerEncoderLayer", "TransformerDecoderLayer", "*Block")
"""The classes of modules that are recomputed where nobody says which."""


def set_activation_checkpoint(model: nn.Module, patterns: Sequence[str] | None = None) -> list[str]:
    """Have blocks of `model` computed again in the backward pass; return their names.

    A model with a method `set_activation_checkpoint` decides itself: it may return the modules to recompute, or do
    everything and return None.

    Args:
        model: The model; its blocks are changed in place, their parameters keep their names.
        patterns: Patterns for the names or classes of the blocks.

    Raises:
        ConfigError: No module matches.
    """
    own = getattr(model, "set_activation_checkpoint", None)
    if callable(own) and patterns is None:
        chosen = _ask(model, own)
        if chosen is None:
            return []
        blocks = [(name, module) for name, module in model.named_modules() if any(module is one for one in chosen)]
    else:
        blocks = matching_any(model, patterns or BLOCKS)
        if not blocks and patterns is None and hasattr(model, "_no_split_modules"):
            # As models of transformers say which of their modules belong together.
            blocks = repeated_blocks(model)
    if not blocks:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ConfigError(
            f"train.activation_checkpoint.enabled: no module of {type(model).__name__} matches "
            f"{list(patterns or BLOCKS)}; name some of {classes} in train.activation_checkpoint.modules, or give the "
            "model a method set_activation_checkpoint that returns them"
        )
    for _, module in blocks:
        recompute(module)
    return [name for name, _ in blocks]


def _ask(model: nn.Module, own: Any) -> Iterable[nn.Module] | None:
    # Written for LiBai it is a static method of the model; written for us it is an ordinary one.
    static = isinstance(vars(type(model)).get("set_activation_checkpoint"), staticmethod)
    chosen = own(model) if static else own()
    return None if chosen is None else list(chosen)


logger = logging.getLogger(__name__)


class TestLoaders(list[Any]):
    """Loaders of test data, each with the name its results are reported under.

    Args:
        named: Loaders by name.
    """

    __test__ = False  # pytest takes the name for a test's

    def __init__(self, named: Mapping[str, Any] | None = None) -> None:
        super().__init__((named or {}).values())
        self.names = list(named or {})

    def add(self, name: str, loader: Any) -> None:
        """Add a loader; a name that is taken gets a number behind it."""
        taken, number, unique = set(self.names), 2, name
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        self.names.append(unique)
        self.append(loader)


def named_loaders(loaders: Any) -> TestLoaders:
    """Return loaders with names: their own, the keys of a dict, or the class names of their data sets."""
    if isinstance(loaders, TestLoaders):
        return loaders
    if isinstance(loaders, Mapping):
        return TestLoaders(loaders)
    named = TestLoaders()
    for loader in loaders if isinstance(loaders, (list, tuple)) else [loaders]:
        named.add(type(getattr(loader, "dataset", loader)).__name__, loader)
    return named


def complete(cfg: Any) -> ConfigDict:
    """Return a copy of a config in which `train` has every key, with its default where the config has none.

    Raises:
        ConfigError: It has no `train`, a key is misspelt, or a value is none that its key takes.
    """
    origins = vars(cfg) if isinstance(cfg, DictConfig) else {}
    copied = ConfigDict(cfg, file=origins.get("_file"))
    copied.__dict__["_overridden"] = origins.get("_overridden")
    if try_get_key(copied, "train") is None:
        raise ConfigError("the config has no `train`; begin with train = get_config('common/train.py').train")
    with open_dict(copied):
        if is_plain_mapping(copied._get_node("train")):
            train = get_config("common/train.py").train
            with open_dict(train):
                _open_everywhere(train)
                train.update(copied.train)
            copied.train = train
        check_keys(copied)
    return copied


def _open_everywhere(node: Any) -> None:
    if isinstance(node, DictConfig):
        node._set_flag("struct", False)
        for key in node:
            _open_everywhere(node._get_node(key))


def build(cfg: Any, key: str, **offered: Any) -> Any:
    """Build what the config has under `key`.

    Args:
        cfg: The config.
        key: Where in it.
        offered: Arguments that the target gets if it takes them and the config does not say otherwise.
    """
    return build_node(try_get_key(cfg, key), **offered)


def build_node(node: Any, **offered: Any) -> Any:
    """Build a lazy call with those of the `offered` arguments that it takes and is not given."""
    if not is_lazy(node):
        return instantiate(node)
    names = known_names(call_target(node, load=True))
    given = {name: value for name, value in offered.items() if name in names and node.get(name) is None}
    return instantiate(node, **given)


def require(cfg: Any, key: str) -> None:
    """Refuse a config that lacks `key`.

    Raises:
        ConfigError: It does.
    """
    if try_get_key(cfg, key) is None:
        raise ConfigError(f"the config has no `{key}`; it says what to build, as a LazyCall")


def as_loader(data: Any, *, batch_size: int, shuffle: bool, where: str) -> Any:
    """Return a loader for what a config built: a loader with batches of `batch_size`, or a data set.

    Raises:
        ConfigError: A loader has another batch size.
    """
    if isinstance(data, DataLoader):
        if data.batch_size not in (None, batch_size):
            raise ConfigError(
                f"{where} has batch_size={data.batch_size}, but the run has {batch_size}; leave it out there, or set "
                "train.train_micro_batch_size or train.test_micro_batch_size"
            )
        return data
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=batch_size)
    if isinstance(data, Dataset):
        return make_loader(data, shuffle=shuffle, batch_size=batch_size)
    return data


def build_train_data(cfg: Any, tokenizer: Any) -> Any:
    """Build what `dataloader.train` describes, with the batch sizes, the seed and the tokenizer of the run."""
    require(cfg, "dataloader.train")
    train = cfg.train
    offered = {
        "train_batch_size": train.train_micro_batch_size,
        "batch_size": train.train_micro_batch_size,
        "test_batch_size": train.test_micro_batch_size,
        "seed": train.seed,
        "tokenizer": tokenizer,
    }
    return build(cfg, "dataloader.train", **offered)


def build_test_data(cfg: Any, tokenizer: Any) -> TestLoaders:
    """Build what `dataloader.test` describes: one call, a list of calls, or calls by name."""
    loaders = TestLoaders()
    offered = {
        "test_batch_size": cfg.train.test_micro_batch_size,
        "batch_size": cfg.train.test_micro_batch_size,
        "seed": cfg.train.seed,
        "tokenizer": tokenizer,
    }
    for name, node in _entries(try_get_key(cfg, "dataloader.test")):
        built = build_node(node, **offered)
        own = type(getattr(built, "dataset", built)).__name__
        loader = as_loader(
            built, batch_size=cfg.train.test_micro_batch_size, shuffle=False, where=f"dataloader.test {name or own}"
        )
        loaders.add(name or own, loader)
    return loaders


def _entries(node: Any) -> Iterator[tuple[str | None, Any]]:
    if node is None:
        return
    if isinstance(node, DictConfig) and not is_lazy(node):
        yield from ((str(name), node[name]) for name in node)
    else:
        yield from ((None, entry) for entry in (node if isinstance(node, ListConfig) else [node]))


def build_tokenizer(cfg: Any) -> Any:
    """Build the tokenizer, if the config has one, and fit the model's vocabulary to it."""
    if try_get_key(cfg, "tokenization.tokenizer") is None:
        return None
    tokenizer = build(cfg, "tokenization.tokenizer")
    if try_get_key(cfg, "model.cfg.vocab_size") is not None:
        multiple = try_get_key(cfg, "tokenization.make_vocab_size_divisible_by", default=1)
        cfg.model.cfg.vocab_size = math.ceil(len(tokenizer) / multiple) * multiple
    return tokenizer


def build_optimizer(cfg: Any, model: nn.Module) -> Any:
    """Build the optimizer over the parameters of `model`, or over the groups that `optim.params` makes of them."""
    require(cfg, "optim")
    if not isinstance(cfg.optim, DictConfig):
        raise ConfigError(f"optim={cfg.optim!r} must be a LazyCall of an optimizer; its parameters are the model's")
    params = cfg.optim.get("params")
    groups = list(model.parameters()) if params is None else build_node(params, model=model)
    return instantiate(cfg.optim, params=groups)


def build_scheduler(cfg: Any, optimizer: Any) -> Any:
    """Build the schedule; lengths that it does not take are left out."""
    node = try_get_key(cfg, "train.scheduler")
    if node is None:
        return None
    names = accepted_names(call_target(node, load=True))
    kept = {key: node._get_node(key) for key in node if names is None or key in names or str(key).startswith("_")}
    dropped = [key for key in node if key not in kept]
    if set(dropped) - {"max_iter", "warmup_iter"}:
        return instantiate(node, optimizer=optimizer)
    return instantiate(ConfigDict(kept), optimizer=optimizer)
