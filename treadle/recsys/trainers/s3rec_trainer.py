"""The trainer of S3Rec."""

from typing import Any

from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.errors import CheckpointError, ConfigError
from treadle.recsys.loading import AbstractDataLoader, SequenceTrainDataLoader
from treadle.recsys.models.settings import choice, whole_or_none
from treadle.recsys.pretraining import HideItemsAndSegments
from treadle.recsys.trainers.model_file import read_model_file
from treadle.recsys.trainers.pretrain_trainer import FINETUNE, STAGES, PretrainTrainer


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
