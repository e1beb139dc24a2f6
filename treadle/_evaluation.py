"""The verbs that look at a model without changing it: evaluation and prediction."""

from typing import Any

from torch import nn

from treadle._saving import Saving
from treadle.data import Batch
from treadle.data.loaders import (
    DEFAULT_SIZE,
    chosen_size,
    loader_arguments,
    refuse_idle_collate,
)
from treadle.errors import ConfigError
from treadle.loss_items import count_targets
from treadle.losses import default_loss, model_inputs, targets_of
from treadle.run_config import TrainerRunConfig


class Evaluation(Saving):
    """Evaluation during training and by itself, and prediction."""

    def evaluate(
        self,
        dataset: Any = None,
        per_device_batch_size: int = DEFAULT_SIZE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Any = None,
    ) -> dict[str, Any]:
        """Run one evaluation epoch on `dataset` and return its metrics by name.

        Every metric that was recorded meanwhile is returned by its name, the loss as `evaluation_loss`. The metrics
        of training stay as they are: in the history these are kept apart, as `evaluation_<name>`.

        Args:
            dataset: What to evaluate on; by default the evaluation data of the last `train`.
            per_device_batch_size: Samples per batch on each process.
            dataloader_kwargs: Arguments for the loader, over the defaults.
            collate_fn: Joins samples into a batch; by default the one of the last `train`.
        """
        data = self.eval_dataset if dataset is None else dataset
        if data is None:
            raise ConfigError("evaluate() has no data; pass a dataset")
        refuse_idle_collate(collate_fn, data)
        own = type(self).create_eval_dataloader is not Evaluation.create_eval_dataloader
        per_device_batch_size = chosen_size(per_device_batch_size, data, used=own, tell=self.print)
        return self.this_run.evaluator.evaluate(data, per_device_batch_size, dataloader_kwargs, collate_fn)  # type: ignore[no-any-return]

    def _run_evaluation(self) -> None:
        """Run the one evaluation epoch of `evaluate`, with what goes before and after it."""
        self.evaluation_run_start()
        with self.callback_handler.session("on_evaluation_run_start", self):  # type: ignore[arg-type]
            self._run_eval_epoch(self._eval_dataloader, is_training=False)
            self.evaluation_run_end()
            self.fire("on_evaluation_run_end")

    def predict(
        self,
        dataset: Any,
        per_device_batch_size: int = DEFAULT_SIZE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Any = None,
    ) -> Any:
        """Return the model's outputs for every sample of `dataset`, in order, on every process.

        Outputs that are tensors come back as one tensor on the CPU, other outputs as a list of batches.
        """
        refuse_idle_collate(collate_fn, dataset)
        per_device_batch_size = chosen_size(per_device_batch_size, dataset, tell=self.print)
        return self.this_run.evaluator.predict(dataset, per_device_batch_size, dataloader_kwargs, collate_fn)

    def calculate_prediction(self, batch: Batch) -> Any:
        """Return the outputs of the model for one batch; override it for other than `model(inputs)`."""
        if self.parallel.in_stages:
            return self.parallel.forward(self.model, *model_inputs(batch))
        return self.model(*model_inputs(batch)[0], **model_inputs(batch)[1])

    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
        """Return the loader for evaluation; `eval_dl_kwargs` win over the defaults."""
        defaults = self.get_default_eval_dl_kwargs(batch_size)
        kwargs = loader_arguments(self.eval_dataset, defaults, eval_dl_kwargs, "eval_dataloader_kwargs")
        return self.this_run.streams.loader(
            self.eval_dataset, **{"shuffle": False, "collate_fn": self.collate_fn, **kwargs}
        )

    def get_default_eval_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the loader arguments of an evaluation that were not given."""
        return {"shuffle": False, "batch_size": batch_size, "pin_memory": self.device.type == "cuda", "num_workers": 0}

    def evaluation_run_start(self) -> None:
        """Called before `evaluate` begins."""

    def evaluation_run_end(self) -> None:
        """Called after `evaluate` ends."""

    def eval_epoch_start(self) -> None:
        """Put the model into evaluation mode; it gets the mode it was found in back afterwards."""
        self.model.eval()

    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return `{"loss": ..., "model_outputs": ..., "batch_size": ...}` for one batch, without gradients."""
        if self.parallel.in_stages:
            return self.parallel.evaluate(self.model, self.precision.for_loss(self.loss_func), batch)
        output = default_loss(self.model, self.precision.for_loss(self.loss_func), batch)
        return count_targets(output, self.loss_func, batch)

    def eval_epoch_end(self) -> None:
        """Called after the last batch of an evaluation, before its loss is recorded."""

    def update_metrics(self, batch: Batch, batch_output: dict[str, Any]) -> None:
        """Hand outputs and targets of one evaluation batch to the metrics given to the trainer."""
        outputs = batch_output.get("model_outputs")
        self._metrics.update(getattr(outputs, "logits", outputs), targets_of(batch))

    def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> dict[str, Any]:
        """Run one evaluation epoch over `valid_dl`, record its metrics and return them."""
        return self.this_run.evaluator.run_epoch(valid_dl, is_training=is_training, is_intermediate=is_intermediate)

    @property
    def is_compiled(self) -> bool:
        """Whether the trainer has forward passes compiled."""
        return self.compile is not None

    def _prepare_model_and_optimizer(self) -> nn.Module:
        raise NotImplementedError

    def prepare_model(self) -> None:
        raise NotImplementedError

    def _create_run_config(
        self,
        per_device_batch_size: int,
        num_epochs: int | None,
        gradient_accumulation_steps: int,
        max_num_train_steps: int | None,
        gradient_clip_value: float | None,
    ) -> TrainerRunConfig:
        raise NotImplementedError
