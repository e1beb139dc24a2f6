"""The trainer of models that learn in two stages."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.errors import CheckpointError, ConfigError
from treadle.recsys.data.dataloader import AbstractDataLoader, SequenceTrainDataLoader
from treadle.recsys.data.transforms import HideItemsAndSegments
from treadle.recsys.models.settings import choice, whole, whole_or_none
from treadle.recsys.trainers.abstract_trainer import Pass
from treadle.recsys.trainers.kg_trainer import trained
from treadle.recsys.trainers.loop.model_file import SUFFIX, read_model_file
from treadle.recsys.trainers.trainer import Trainer

BOTH, PRETRAIN, FINETUNE = "both", "pretrain", "finetune"
STAGES = (BOTH, PRETRAIN, FINETUNE)


class PretrainTrainer(Trainer):
    """Trains in stages: `pretrain_epochs` epochs that nobody evaluates, and then `epochs` as any other trainer.

    `pretrain` makes the first stage alone, and `fit` what `train_stage` says: here the second one. Each has an
    optimizer of its own, which begins anew. The first stage is trained with `model.calculate_pretrain_loss`, or, where
    the model has none, with `calculate_loss`. Where both are made in a row, the epochs of the second are counted after
    those of the first, and the run is resumed in either.

    Attributes:
        train_stage: "both", "pretrain" or "finetune".
        pretrain_epochs: How many epochs the first stage has.
        save_step: After how many of them the model is kept, in a file of its own each time; after the last, always.
        optimizer_pretrain: The optimizer of the first stage.

    Raises:
        ConfigError: `pretrain_epochs` or `save_step` is no whole number from 1.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.train_stage = FINETUNE
        self.pretrain_epochs, self.save_step = whole(config, "pretrain_epochs"), whole(config, "save_step")
        rate = config["pretrain_learning_rate"]
        self.optimizer_pretrain = self._build_optimizer(**({} if rate is None else {"learning_rate": rate}))
        self.track(stage=Stage(self))

    def pretrain(self, train_data: Any, verbose: bool = True, show_progress: bool = False) -> tuple[float, Any]:
        """Make the first stage alone, and return what a `fit` without validation does."""
        self.train_stage = PRETRAIN
        return Trainer.fit(self, train_data, None, verbose=verbose, show_progress=show_progress)

    def fit(
        self,
        train_data: Any,
        valid_data: Any = None,
        verbose: bool = True,
        saved: bool = True,
        show_progress: bool = False,
        callback_fn: Callable[[int, Any], Any] | None = None,
    ) -> tuple[float, Any]:
        """Make the stages that `train_stage` names; only the second is evaluated. See `Trainer.fit`."""
        watched = None if self.train_stage == PRETRAIN else valid_data
        return super().fit(train_data, watched, verbose, saved, show_progress, callback_fn)

    def save_pretrained_model(self, epoch: int, saved_model_file: Any) -> None:
        """Keep the model as it is after an epoch of the first stage, in a file that a second stage can begin from."""
        self._save_checkpoint(epoch, saved_model_file=saved_model_file)

    @property
    def _first_epochs(self) -> int:
        """How many epochs of this training belong to the first stage."""
        return 0 if self.train_stage == FINETUNE else self.pretrain_epochs

    def _epochs_in_all(self) -> int:
        return self._first_epochs + (0 if self.train_stage == PRETRAIN else self.epochs)

    def _passes(self) -> Iterable[Pass]:
        # Neither loss need reach the whole model, and on several processes that has to be said.
        model, first, learning = self.model, self._first_epochs, trained(self.model)
        pretrain = Pass(
            name=PRETRAIN,
            loss=getattr(model, "calculate_pretrain_loss", model.calculate_loss),
            optimizer=self.optimizer_pretrain,
            parameters=learning,
            is_due=lambda epoch: epoch < first,
            data=self._pretrain_data,
        )
        finetune = Pass(
            name=FINETUNE,
            loss=model.calculate_loss,
            optimizer=self.optimizer,
            parameters=learning,
            is_due=lambda epoch: epoch >= first,
        )
        return {BOTH: [pretrain, finetune], PRETRAIN: [pretrain], FINETUNE: [finetune]}[self.train_stage]

    def _pretrain_data(self, data: Any) -> Any:
        """Return what the first stage goes through: the training data, unless a subclass makes other data of it."""
        return data

    def _pretrain_identity(self) -> dict[str, Any]:
        """Return what else makes the first stage what it is, such as its rows: a run goes on with the same only."""
        return {}

    def _is_evaluated(self, epoch: int) -> bool:
        return epoch >= self._first_epochs and super()._is_evaluated(epoch - self._first_epochs)

    def _after_epoch(self, epoch: int, *, saved: bool) -> None:
        done = epoch + 1
        if saved and done <= self._first_epochs and (done % self.save_step == 0 or done == self._first_epochs):
            name = f"{self.config.model}-{self.config.dataset}-{done}{SUFFIX}"
            self.save_pretrained_model(epoch, Path(self.saved_model_file).with_name(name))

    def _activity(self, epoch: int) -> str:
        return "pretraining" if epoch < self._first_epochs else super()._activity(epoch)


class Stage:
    """Which stages a run has, as a part of its checkpoints: with others, its epochs would mean something else.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: PretrainTrainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Return the stages, where the second begins, and what else makes the first what it is."""
        trainer = self._trainer
        epochs = trainer.pretrain_epochs if trainer.train_stage == BOTH else None
        further = {} if trainer.train_stage == FINETUNE else trainer._pretrain_identity()
        return {"train_stage": trainer.train_stage, "pretrain_epochs": epochs, **further}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make sure that the stages are the same.

        Raises:
            CheckpointError: They are not.
        """
        own = self.state_dict()
        if own != state:
            told = [", ".join(f"{name}={value!r}" for name, value in one.items()) for one in (state, own)]
            raise CheckpointError(
                f"the run was saved with {told[0]}, and now has {told[1]}; set them as they were, or begin another run"
            )


# The trainer of RaCT


ACTOR_CRITIC_STAGES = ("actor_pretrain", "critic_pretrain", FINETUNE)


class RaCTTrainer(PretrainTrainer):
    """Trains RaCT in three runs: an actor, a critic that foretells how well it ranks, and the actor by its critic.

    `train_stage` says which. The first two are trained for `pretrain_epochs` epochs that nobody evaluates, and keep the
    model in a file; the next run begins from it, which the model itself does by `pre_model_path`.

    Raises:
        ConfigError: There is no such stage.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self._stage = choice(config, "train_stage", ACTOR_CRITIC_STAGES)
        self.train_stage = FINETUNE if self._stage == FINETUNE else PRETRAIN

    def _pretrain_identity(self) -> dict[str, Any]:
        # Two of the stages pretrain.
        return {"stage": self._stage}


# The trainer of S3Rec


class S3RecTrainer(PretrainTrainer):
    """Trains S3Rec: first on what sequences hide, then on what comes next.

    With `train_stage: both` one `fit` makes both stages. With "pretrain" it makes the first, and with "finetune" the
    second, which begins from the file `pre_model_path`, one that the first kept.

    Raises:
        ConfigError: There is no such stage, "finetune" has nothing to begin from, or another stage has something.
        CheckpointError: The file to begin from is damaged, or of another model.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.train_stage = choice(config, "train_stage", STAGES)
        self._batch_size = whole_or_none(config, "pretrain_batch_size")
        self._prefixes = bool(config["pretrain_prefixes"])
        path = config["pre_model_path"]
        if self.train_stage == FINETUNE:
            self._begin_from(path)
        elif path:
            raise ConfigError(
                f"pre_model_path={str(path)!r} is where train_stage='finetune' begins, and train_stage is "
                f"{self.train_stage!r}; set that, or leave pre_model_path out"
            )

    def _begin_from(self, path: Any) -> None:
        if not path:
            raise ConfigError(
                "train_stage='finetune' begins from what train_stage='pretrain' has kept: set pre_model_path to such a "
                "file, or train_stage to 'both'"
            )
        state = read_model_file(str(path))
        if state["model"] != self.config.model:
            raise CheckpointError(
                f"pre_model_path={str(path)!r} is of the model {state['model']}, and this one is {self.config.model}"
            )
        load_plain_state_dict(self.model, state["state_dict"], where=str(path))

    def _pretrain_identity(self) -> dict[str, Any]:
        return {"pretrain_prefixes": self._prefixes}

    def _pretrain_data(self, data: Any) -> Any:
        if not hasattr(self.model, "calculate_pretrain_loss"):
            return data  # a model that hides what it wants to find
        if not isinstance(data, AbstractDataLoader):
            raise ConfigError(
                f"the training data is a {type(data).__name__}, whose sequences cannot be hidden from the model; use "
                "the loader that data_preparation makes"
            )
        if self._prefixes and isinstance(data, SequenceTrainDataLoader):
            data = data.prefixes()
        made = data.transformed(HideItemsAndSegments(self.config, data.dataset))
        if self._batch_size is not None:
            made.set_batch_size(self._batch_size)
        return made
