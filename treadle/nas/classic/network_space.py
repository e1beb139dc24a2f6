"""Spaces of networks, as a search over trials sees them: what there is to decide, and what a trial is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from treadle.checkpoint.format.file import read_file, write_file
from treadle.errors import ConfigError
from treadle.nas.fixed import freeze
from treadle.nas.space.decisions import Architecture, Decision, Subset
from treadle.nas.space.model_space import Space
from treadle.nas.viz import draw
from treadle.search.encoding import RecordedNames, build, decode, encode
from treadle.search.space.base import Searched
from treadle.search.space.config_space import as_search_space as config_searched_of
from treadle.search.space.config_space import is_config, is_lazy_call
from treadle.search.space.dimensions import Categorical, Dimension
from treadle.search.space.extension import TrialTarget, TrialWeights
from treadle.search.store.history import Outcome
from treadle.search.strategies.evolution import distance

# Weights that outlive a trial: kept in a file, and handed on to trials with a similar network


def load_matching_weights(model: nn.Module, path: Path) -> list[str]:
    """Give a network the weights in a file, as far as names and shapes agree; return the names of those it got.

    Raises:
        CheckpointError: The file is not there, or is damaged.
    """
    known = read_file(path)["model"]
    own = model.state_dict()
    shared = [name for name, value in own.items() if name in known and known[name].shape == value.shape]
    with torch.no_grad():
        for name in shared:
            own[name].copy_(known[name])
    return shared


@dataclass(frozen=True)
class Network:
    """An architecture of a space of networks.

    Attributes:
        space: The space, or what makes it.
        architecture: What was decided.
        begin: The file with the weights to begin with; None begins with new ones.
        keep: The file to write the weights to at the end; None does not write them.
    """

    space: Any
    architecture: Architecture
    begin: Path | None = None
    keep: Path | None = None

    def build(self) -> Any:
        """Return the network."""
        network = freeze(build_space(self.space), self.architecture)
        if self.begin is not None:
            load_matching_weights(network, self.begin)
        return network

    def leave(self, built: Any) -> None:
        """Write the weights and buffers of the network, if they are to be kept; the file is complete or not there."""
        if self.keep is not None:
            write_file(self.keep, {"model": built.state_dict()})

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "space": encode(self.space, "the space"),
            "architecture": self.architecture,
            "begin": encode(self.begin, "the weights to begin with"),
            "keep": encode(self.keep, "the place of the weights"),
        }

    @staticmethod
    def decoded(data: Mapping[str, Any], names: RecordedNames) -> "Network":
        """Return what `encoded` wrote."""
        return Network(
            decode(data["space"], names),
            dict(data["architecture"]),
            decode(data["begin"], names),
            decode(data["keep"], names),
        )


class NetworkWeights(TrialWeights):
    """The weights of the networks of a search, each in a file of its trial.

    Args:
        folder: Where they are.
        inherit: Whether networks begin with the weights of others.
    """

    def __init__(self, folder: Path, *, inherit: bool) -> None:
        self._folder, self._inherit = folder, inherit

    def file(self, number: int) -> Path:
        """Return the file with the weights of a trial."""
        return self._folder / f"trial_{number:06d}.safetensors"

    def is_left(self, number: int) -> bool:
        """Whether the weights of a trial are there."""
        return self.file(number).is_file()

    def nearest(self, taken: Architecture, proposed: int | None, outcomes: Sequence[Outcome]) -> int | None:
        """Return the parent of a trial, or the trial with the most similar network whose weights were kept.

        Of equally similar ones the better counts, and of equally good ones the older.
        """
        if not self._inherit:
            return None
        if proposed is not None and self.is_left(proposed):
            return proposed
        kept = [(distance(taken, one.taken), one.values, one.number) for one in outcomes if self.is_left(one.number)]
        return min(kept)[-1] if kept else None

    def handed(self, subject: TrialTarget, number: int, inherits: int | None) -> TrialTarget:
        """Return the network with the files that it begins with and leaves behind."""
        assert isinstance(subject, Network)
        return replace(subject, begin=None if inherits is None else self.file(inherits), keep=self.file(number))


class NetworkSpace(Searched):
    """A space of networks.

    Args:
        given: The space, a lazy call of it, or a class or function without arguments that makes it.

    Raises:
        ConfigError: It is no model, or there is nothing to decide in it.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.space = Space(build_space(given))
        if not self.space.decisions:
            raise ConfigError(
                f"there is nothing to decide in {type(self.space.model).__name__}; put a LayerChoice, an InputChoice "
                "or a ValueChoice into it"
            )
        self.dimensions: dict[str, Dimension] = {
            label: Categorical(label, list(decision.options()), _weights(decision))
            for label, decision in self.space.decisions.items()
        }

    def exists(self, label: str, taken: Mapping[str, Any]) -> bool:
        """Whether a decision is to be made, given those before it."""
        return self.space.exists(label, taken)

    def allows(self, taken: Architecture) -> bool:
        """Whether all constraints are satisfied."""
        return self.space.allows(taken)

    @property
    def is_conditional(self) -> bool:
        """Whether some combinations of values are not to be had."""
        return bool(self.space.constraints) or any(self.space.depends_on(label) for label in self.dimensions)

    def task(self, taken: Architecture) -> Network:
        """Return how a trial builds the network."""
        return Network(self.given, taken)

    def picture(self, taken: Architecture, title: str) -> str:
        """Return a drawing of an architecture."""
        return draw(taken, self.space.model, title=title)

    def weights(self, folder: Path, *, inherit: bool) -> NetworkWeights:
        """Return the weights of the networks, which trials keep and may begin with."""
        return NetworkWeights(folder, inherit=inherit)

    def require_proxy_support(self) -> None:
        """Refuse nothing: a network says much before it is trained."""


def _weights(decision: Decision) -> tuple[float, ...] | None:
    # The weights of a subset are those of its members; only where one is taken are they those of the values.
    return None if isinstance(decision, Subset) and decision.chosen != 1 else decision.weights


def build_space(given: Any) -> nn.Module:
    """Return the model of a space, made anew where something makes it.

    Raises:
        ConfigError: It is none.
    """
    made = given
    if is_lazy_call(given):
        made = build(given)
    elif not isinstance(given, nn.Module) and callable(given):
        made = given()
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"the space is {made!r}; give a model with choices in it, a class or LazyCall that makes one, or a config "
            "or dict with domains such as nas.one_of(1, 2) in it"
        )
    return made


def as_search_space(space: Any) -> Searched:
    """Return what is searched.

    Args:
        space: A model with choices in it, a class or lazy call that makes one, or a config or dict with domains.

    Raises:
        ConfigError: There is nothing to decide in it.
    """
    if isinstance(space, Searched) or is_config(space):
        return config_searched_of(space)
    return NetworkSpace(space)
