"""The verbs that look at a model without changing it: evaluation and prediction."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from treadle._saving import Saving
from treadle.data import Batch, RandomState, Stream, size_of
from treadle.data.loaders import (
    DEFAULT_SIZE,
    as_loader,
    chosen_size,
    loader_arguments,
    refuse_idle_collate,
    require_loader,
)
from treadle.errors import ConfigError, DataError
from treadle.events import EvaluationHistory, LossTracker
from treadle.leaving import LeavableEvaluation
from treadle.loss_items import count_targets, counted_in
from treadle.losses import check_loss, default_loss, describe_batch, model_inputs, targets_of
from treadle.parallel import in_step
from treadle.run_config import TrainerRunConfig


class Evaluation(Saving):
    """Evaluation during training and by itself, and prediction."""

    _leavable: LeavableEvaluation | None = None

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
        data_of_run, collate_of_run = self.eval_dataset, self.collate_fn
        stream_of_run, config_of_run, kwargs_of_run = self._eval_dataloader, self.run_config, self._eval_dl_kwargs
        self.eval_dataset, self.collate_fn = data, collate_fn or self.collate_fn
        history_of_run, history = self.run_history, EvaluationHistory(self.run_history)
        self.run_history = history
        try:
            self._eval_dl_kwargs = dataloader_kwargs
            self._eval_dataloader = self._eval_stream(
                self.create_eval_dataloader(per_device_batch_size, dataloader_kwargs)
            )
            if not self.this_run.stop.looping:
                self._prepare_model_and_optimizer()
            # Here too, and wherever it is called: one that a user wrote knows nothing of it.
            self.parallel.share_buffers(self.model)
            self.run_config = self._create_run_config(
                per_device_batch_size=per_device_batch_size,
                num_epochs=1,
                gradient_accumulation_steps=1,
                max_num_train_steps=None,
                gradient_clip_value=None,
            )
            with history.in_use():
                self._run_evaluation()
        finally:
            self.run_history = history_of_run
            if self._eval_dataloader is not None and self._eval_dataloader is not stream_of_run:
                self._eval_dataloader.close()
            if self.this_run.stop.looping:
                # A callback evaluates in the middle of a run, which goes on with its own data.
                self._eval_dataloader, self.run_config = stream_of_run, config_of_run
                self._eval_dl_kwargs = kwargs_of_run
            if self.this_run.stop.looping or data_of_run is not None:
                self.eval_dataset, self.collate_fn = data_of_run, collate_of_run
        return history.results()

    def _run_evaluation(self) -> None:
        """Run the one evaluation epoch of `evaluate`, with what goes before and after it."""
        self.evaluation_run_start()
        with self.callback_handler.session("on_evaluation_run_start", self):  # type: ignore[arg-type]
            self._run_eval_epoch(self._eval_dataloader, is_training=False)
            self.evaluation_run_end()
            self.fire("on_evaluation_run_end")

    @torch.no_grad()
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
        self._prepare_model()
        self.parallel.share_buffers(self.model)
        defaults = {"batch_size": per_device_batch_size}
        kwargs = loader_arguments(dataset, defaults, dataloader_kwargs, "dataloader_kwargs")
        loader = self._loader(dataset, False, kwargs, collate_fn)
        stream = self._stream(loader, evaluation=True, name="prediction")
        stream.limit = None
        self._look_for_sparse()
        with closing(stream), self.single_precision, self._looking():
            self.model.eval()
            passes = [(self._predict_batch(batch), counts) for batch, counts in self._in_step(stream)]
            outputs = [output for output, counts in passes if counts]
        return self._joined(outputs)

    def calculate_prediction(self, batch: Batch) -> Any:
        """Return the outputs of the model for one batch; override it for other than `model(inputs)`."""
        if self.parallel.in_stages:
            return self.parallel.forward(self.model, *model_inputs(batch))
        return self.model(*model_inputs(batch)[0], **model_inputs(batch)[1])

    def _predict_batch(self, batch: Batch) -> Any:
        with self.precision.autocast("prediction"):
            output = self.calculate_prediction(batch)
        halved = isinstance(output, Tensor) and output.dtype in (torch.float16, torch.bfloat16)
        return output.float() if halved and not self.precision.plain else output

    def _joined(self, outputs: list[Any]) -> Any:
        other = not all(isinstance(output, Tensor) for output in outputs)
        # A rank may have no batch at all: what is done is decided for all of them together.
        rounds, others = self.processes.reduce([float(len(outputs)), float(other)], "max")
        if not rounds:
            raise DataError("there is nothing to predict: the data gives no batch")
        if others and self.processes.distributed:
            raise DataError("predict() on several processes needs a tensor from calculate_prediction")
        if not self.processes.distributed:
            return outputs if others else torch.cat(outputs).cpu()
        shape, dtype = self.processes.share((outputs[0].shape[1:], outputs[0].dtype) if outputs else None)
        nothing = torch.empty(0, *shape, dtype=dtype, device=self.device)
        outputs = outputs + [nothing] * (int(rounds) - len(outputs))
        ranks = self.parallel.data_ranks
        return torch.cat([self.processes.gather(output, padding_value=0, ranks=ranks) for output in outputs]).cpu()

    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
        """Return the loader for evaluation; `eval_dl_kwargs` win over the defaults."""
        defaults = self.get_default_eval_dl_kwargs(batch_size)
        kwargs = loader_arguments(self.eval_dataset, defaults, eval_dl_kwargs, "eval_dataloader_kwargs")
        return self._loader(self.eval_dataset, bool(kwargs.pop("shuffle", False)), kwargs, self.collate_fn)

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

    @torch.no_grad()
    def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> dict[str, Any]:
        """Run one evaluation epoch over `valid_dl`, record its metrics and return them."""
        if not isinstance(valid_dl, Stream):
            with closing(self._eval_stream(require_loader(valid_dl, "valid_dl"))) as stream:
                return Evaluation._run_eval_epoch(self, stream, is_training, is_intermediate)
        tracker = LossTracker()
        # Of an evaluation inside of this one, such as that of averaged weights, only all can be left.
        leavable, self._leavable = self._leavable, None
        self.parallel.share_buffers(self.model)
        self._look_for_sparse()
        with self.single_precision, self._looking():
            valid_dl.begin(0)
            if self.parallel.copies > 1:
                self._metrics.within(self.parallel.data_group)
            self._metrics.to(self.device)
            self._metrics.reset()
            with self.this_run.stop.together():
                self.eval_epoch_start()
            self.fire("on_eval_epoch_start", is_intermediate=is_intermediate)
            for batch, counts in self._in_step(valid_dl):
                if not counts:
                    self._predict_batch(batch)
                    continue
                self.fire("on_eval_step_start", batch=batch)
                output = self._evaluate_batch(batch, valid_dl, tracker)
                self.fire("on_eval_step_end", batch=batch, batch_output=output)
                if leavable is not None:
                    leavable.after_batch()
            with self.this_run.stop.together():
                self.eval_epoch_end()
            results = self._record_evaluation(tracker, is_training)
        self.fire("on_eval_epoch_end", is_intermediate=is_intermediate)
        return results

    def _in_step(self, stream: Stream) -> Iterator[tuple[Batch, bool]]:
        """Yield batches, and whether they are more than company for other ranks; ranks with the same ones all count."""
        if not self.parallel.meets:
            yield from ((batch, True) for batch in stream.rest())
            return
        drawn = -1
        for batch, _ in in_step(stream.rest(), self.processes, self.parallel):
            drawn, before = stream.drawn, drawn
            yield batch, drawn != before

    def _evaluate_batch(self, batch: Batch, valid_dl: Any, tracker: LossTracker) -> dict[str, Any]:
        try:
            with self.precision.autocast("evaluation"):
                output = self.calculate_eval_batch_loss(batch)
            if valid_dl.drawn == 1:
                check_loss(output, verb="calculate_eval_batch_loss", graph=False)
            weight, counted = self._size_in(output, batch), counted_in(output)
            recorded = weight if counted is None else counted.recorded(weight)
            tracker.update(self._mean_loss(output["loss"], weight), recorded)
            if self._metrics:
                self.update_metrics(batch, output)
        except Exception as error:
            place = f"in calculate_eval_batch_loss, at batch {valid_dl.drawn}"
            error.add_note(f"{place}, for a batch of {describe_batch(batch)}")
            raise
        return output

    @staticmethod
    def _size_in(output: dict[str, Any], batch: Batch) -> Any:
        """Return what the loss in `output` is a mean over: items if it says so, else samples."""
        for name in ("num_items_in_batch", "batch_size"):
            if output.get(name) is not None:
                return output[name]
        return size_of(batch)

    def _mean_loss(self, loss: Any, weight: Any) -> Any:
        """Return the loss to record: a sum is divided by what it is over, without reading the device."""
        if self.loss_reduction == "mean":
            return loss
        return loss.detach() / (weight.clamp_min(1) if isinstance(weight, Tensor) else weight or 1)

    def _record_evaluation(self, tracker: LossTracker, is_training: bool) -> dict[str, Any]:
        total, count = self.processes.reduce([tracker.total_loss, tracker.running_count])
        if not count:
            raise DataError(
                "the evaluation data gave no sample; check the data set, its filter and its loader, and whether any "
                "target counts"
            )
        found = {"eval_loss_epoch" if is_training else "evaluation_loss": total / count, **self._metrics.compute()}
        for name, value in found.items():
            self.run_history.update_metric(name, value)
        prefix = self.run_history.metric_name_prefix
        return {name: self.run_history.get_latest_metric(prefix + name) for name in found}

    def _look_for_sparse(self) -> None:
        """Find out once more whether the model multiplies with sparse tensors, which autocast must not touch."""
        if not self.precision.plain:
            self.precision.products.look_again(self.model, compiled=self._is_compiled())

    def _is_compiled(self) -> bool:
        """Whether the trainer has forward passes compiled."""
        return self.compile is not None

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Leave the modes of all modules, and every random generator, as they were found."""
        modes = [(module, module.training) for module in self.model.modules()]
        random = RandomState()
        state = random.state_dict()
        try:
            yield
        finally:
            self.parallel.after_looking(self.model)
            for module, mode in modes:
                module.training = mode
            random.load_state_dict(state)

    def _eval_stream(self, loader: Any) -> Stream:
        """Return the stream over a loader of evaluation data."""
        stream = self._stream(loader, evaluation=True, name="evaluation")
        # Asked of the data and not of this rank's share: every rank must come to the same answer.
        length = getattr(stream.dataset, "__len__", None)
        shared = self.processes.distributed and stream.sampler is not None
        if shared and length is not None and length() < self.parallel.data_size:
            raise DataError(
                f"the evaluation data has {length()} samples for {self.parallel.data_size} processes; "
                "give at least one to each"
            )
        return stream

    def _close_streams(self) -> None:
        for stream in (*self.streams.values(), self._eval_dataloader):
            if stream is not None:
                stream.close()

    def _stream(self, source: Any, *, evaluation: bool = False, name: str = "train") -> Stream:
        return Stream(
            source,
            device=self.device,
            seed=self.data_seed,
            rank=self.parallel.data_rank,
            size=self.parallel.data_size,
            evaluation=evaluation,
            limit=self.max_batches_per_epoch,
            name=name,
            share=self.processes.share,
        )

    @staticmethod
    def _loader(data: Any, shuffle: bool, kwargs: dict[str, Any], collate_fn: Any) -> Any:
        """Return `data` if it is a loader or an iterable of batches already, else a loader over the data set."""
        return as_loader(data, shuffle=shuffle, **{"collate_fn": collate_fn, **kwargs})

    def _prepare_model_and_optimizer(self) -> nn.Module:
        raise NotImplementedError

    def _prepare_model(self) -> None:
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
