"""The trainer of models with a knowledge graph, and what those of particular models share with it."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from treadle.errors import ConfigError
from treadle.recsys.data.dataloader import KnowledgeBasedDataLoader
from treadle.recsys.enums import KGDataLoaderState
from treadle.recsys.models.settings import whole, whole_or_none
from treadle.recsys.trainers.abstract_trainer import Pass
from treadle.recsys.trainers.trainer import Trainer


class KGTrainer(Trainer):
    """Trains on interactions and triples: both in each batch, or in turns by epochs.

    With `train_rec_step` and `train_kg_step`, that many epochs go through the interactions with `calculate_loss`, then
    that many through the triples with `calculate_kg_loss`, and so on. Without them every batch has what the model's
    `batch_state` says: interactions and as many triples, or interactions alone.

    Attributes:
        train_rec_step, train_kg_step: How many epochs of each kind follow each other; None for no turns.

    Raises:
        ConfigError: They are no whole numbers from 1.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.train_rec_step = whole_or_none(config, "train_rec_step")
        self.train_kg_step = whole_or_none(config, "train_kg_step")

    def _passes(self) -> Iterable[Pass]:
        rec, graph = self.train_rec_step, self.train_kg_step
        if rec is None or graph is None:
            state = getattr(self.model, "batch_state", KGDataLoaderState.RSKG)
            loss = self.model.calculate_loss
            return [Pass(name="train", loss=loss, optimizer=self.optimizer, data=partial(select_batches, state=state))]
        both = rec + graph
        return [
            rec_pass(self, self.model.calculate_loss, is_due=lambda epoch: epoch % both < rec),
            kg_pass(self, self.model.calculate_kg_loss, is_due=lambda epoch: epoch % both >= rec),
        ]


def rec_pass(trainer: Trainer, loss: Callable[[Any], Any], **given: Any) -> Pass:
    """Return a pass through the interactions."""
    return _pass(trainer, "rec", loss, KGDataLoaderState.RS, **given)


def kg_pass(trainer: Trainer, loss: Callable[[Any], Any], **given: Any) -> Pass:
    """Return a pass through the triples."""
    return _pass(trainer, "kg", loss, KGDataLoaderState.KG, **given)


def _pass(trainer: Trainer, name: str, loss: Callable[[Any], Any], state: KGDataLoaderState, **given: Any) -> Pass:
    # Neither loss need reach the whole model, and on several processes that has to be said.
    known: dict[str, Any] = {"optimizer": trainer.optimizer, "parameters": trained(trainer.model), **given}
    return Pass(name=name, loss=loss, data=partial(select_batches, state=state), **known)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that learn."""
    return [one for one in model.parameters() if one.requires_grad]


def select_batches(data: Any, state: KGDataLoaderState) -> Any:
    """Return the interactions, the triples or both of the training data.

    Raises:
        ConfigError: The data has no triples, and they are asked for.
    """
    if isinstance(data, KnowledgeBasedDataLoader):
        return data.part(state)
    if state is KGDataLoaderState.KG:
        raise ConfigError(
            f"the training data is a {type(data).__name__}, which has no triples to train on; use the loader that "
            "data_preparation makes for a model with a knowledge graph"
        )
    return data


# The trainer of KGAT


class KGATTrainer(Trainer):
    """Trains on interactions, then on triples, and then lets the model look at its graph anew: every epoch.

    The interactions go through `calculate_loss`, the triples through `calculate_kg_loss`; after them
    `model.update_attentive_A()` is called, without gradients. What it leaves belongs to the model's state: a buffer, so
    that a run which is resumed goes on with the attention that it had.
    """

    def _passes(self) -> Iterable[Pass]:
        model = self.model
        return [
            rec_pass(self, model.calculate_loss),
            kg_pass(self, model.calculate_kg_loss, after=self._refresh_attention),
        ]

    @torch.no_grad()
    def _refresh_attention(self) -> None:
        self.model.eval()
        self.model.update_attentive_A()
        self.model.train()


# The trainer of MKR


class MKRTrainer(Trainer):
    """Trains on interactions every epoch, and every `kge_interval` epochs on triples as well.

    The interactions go through `calculate_rs_loss`, the triples through `calculate_kg_loss`. With `kge_learning_rate`
    the triples have an optimizer of their own, as the authors' program has.

    Attributes:
        kge_interval: How many epochs lie between two passes through the triples; the first epoch has one.
        optimizer_kge: The optimizer of the triples.

    Raises:
        ConfigError: `kge_interval` is no whole number from 1.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.kge_interval = whole(config, "kge_interval")
        rate = config["kge_learning_rate"]
        self.optimizer_kge = self.optimizer if rate is None else self._build_optimizer(learning_rate=rate)

    def _passes(self) -> Iterable[Pass]:
        model = self.model
        return [
            rec_pass(self, model.calculate_rs_loss),
            kg_pass(
                self,
                model.calculate_kg_loss,
                optimizer=self.optimizer_kge,
                is_due=lambda epoch: epoch % self.kge_interval == 0,
            ),
        ]
