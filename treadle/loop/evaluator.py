"""Looking at a model without changing it: evaluation and prediction."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treadle.data import Batch, RandomState, Stream, size_of
from treadle.data.loaders import DefaultSize, loader_arguments, require_loader
from treadle.errors import DataError
from treadle.events import EvaluationHistory, LossTracker
from treadle.loop.cadence import AGREEMENT_STEPS
from treadle.loop.interfaces import RunningTrainer
from treadle.ops.eval_mode import keep_modes
from treadle.ops.loss_items import counted_in
from treadle.ops.losses import check_loss, describe_batch
from treadle.parallel import in_step
from treadle.progress import AFTER_STEP
from treadle.runs.preemption import EvaluationInterrupted, InterruptibleEvaluation


class Evaluator:
    """Evaluates and predicts by the methods of a trainer, in a run and by itself.

    Args:
        trainer: Whose model is looked at.

    Attributes:
        leavable: How the evaluation that comes next is broken off when the run is asked to leave; None if it is not.
        is_evaluating: Whether an evaluation is under way.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        self.trainer = trainer
        self.leavable: InterruptibleEvaluation | None = None
        self.is_evaluating = False

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Leave the modes of all modules, and every random generator, as they were found."""
        model, before = self.trainer.model, self.is_evaluating
        with RandomState().kept(), keep_modes(model):
            self.is_evaluating = True
            try:
                with self.trainer.exchange.in_evaluation():
                    yield
            finally:
                self.is_evaluating = before
                self.trainer.parallel.after_eval(model)

    def find_sparse(self) -> None:
        """Find out once more whether the model multiplies with sparse tensors, which autocast must not touch."""
        trainer = self.trainer
        if not trainer.precision.plain:
            trainer.precision.products.look_again(trainer.model, compiled=trainer.is_compiled)

    # In a run -----------------------------------------------------------------------------------------------

    def evaluate_run(self, when: int) -> None:
        """Evaluate in the middle of the run; one that is asked to leave does, and evaluates when it is resumed."""
        trainer = self.trainer
        length = getattr(trainer._eval_dataloader, "length", None)
        intermediate = {"is_intermediate": True} if when == AFTER_STEP else {}
        with self.in_run(when, length), trainer.exchange.in_evaluation():
            trainer._run_eval_epoch(trainer._eval_dataloader, **intermediate)

    @contextmanager
    def in_run(self, when: int, length: int | None = None) -> Iterator[None]:
        """Let the evaluation in the block be broken off if the run is asked to leave, and be made when it resumes."""
        trainer, run = self.trainer, self.trainer.this_run
        trainer.progress.evaluation = when
        trainer.parallel.share_buffers(trainer.model)
        if run.checkpointer.saves:
            asked = run.stop.is_asked_to_leave
            self.leavable = InterruptibleEvaluation(asked, trainer.processes, length, AGREEMENT_STEPS)
        try:
            yield
        except EvaluationInterrupted:
            self.leave()
        finally:
            self.leavable = None
        trainer.progress.evaluation = 0

    def leave(self) -> None:
        """Leave an evaluation that was broken off, which is made again when the run continues."""
        run = self.trainer.this_run
        # What was saved at this step knows nothing of the evaluation; a cut epoch resumes where it was saved.
        if not (run.epoch_is_cut and self.trainer.progress.evaluation):
            run.checkpointer.forget_place()
        run.leave_if_asked()

    # One evaluation -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def run_epoch(self, valid_dl: Any, *, is_training: bool, is_intermediate: bool) -> dict[str, Any]:
        """Run one evaluation epoch over `valid_dl`, record its metrics and return them."""
        trainer, stop = self.trainer, self.trainer.this_run.stop
        if not isinstance(valid_dl, Stream):
            with closing(trainer.this_run.streams.for_evaluation(require_loader(valid_dl, "valid_dl"))) as stream:
                return self.run_epoch(stream, is_training=is_training, is_intermediate=is_intermediate)
        tracker, metrics = LossTracker(), trainer._metrics.evaluation
        # Of an evaluation inside of this one, such as that of averaged weights, only all can be left.
        leavable, self.leavable = self.leavable, None
        trainer.parallel.share_buffers(trainer.model)
        self.find_sparse()
        with trainer.single_precision, self.eval_mode():
            valid_dl.begin(0)
            if trainer.parallel.copies > 1:
                metrics.within(trainer.parallel.data_group)
            metrics.to(trainer.device)
            metrics.reset()
            with stop.together():
                trainer.eval_epoch_start()
            trainer.fire("on_eval_epoch_start", is_intermediate=is_intermediate)
            for batch, counts in self._in_step(valid_dl):
                if not counts:
                    self._predict_batch(batch)
                    continue
                trainer.fire("on_eval_step_start", batch=batch)
                output = self._evaluate_batch(batch, valid_dl, tracker)
                trainer.fire("on_eval_step_end", batch=batch, batch_output=output)
                if leavable is not None:
                    leavable.after_batch()
            with stop.together():
                trainer.eval_epoch_end()
            results = self._record(tracker, is_training)
        trainer.fire("on_eval_epoch_end", is_intermediate=is_intermediate)
        return results

    def _in_step(self, stream: Stream) -> Iterator[tuple[Batch, bool]]:
        """Yield batches, and whether they are more than company for other ranks; ranks with the same ones all count."""
        parallel = self.trainer.parallel
        if not parallel.is_lockstep:
            yield from ((batch, True) for batch in stream.rest())
            return
        drawn = -1
        for batch, _ in in_step(stream.rest(), self.trainer.processes, parallel):
            drawn, before = stream.drawn, drawn
            yield batch, drawn != before

    def _evaluate_batch(self, batch: Batch, valid_dl: Any, tracker: LossTracker) -> dict[str, Any]:
        trainer = self.trainer
        try:
            with trainer.precision.autocast("evaluation"):
                output = trainer.calculate_eval_batch_loss(batch)
            if valid_dl.drawn == 1:
                check_loss(output, verb="calculate_eval_batch_loss", graph=False)
            weight, counted = size_in(output, batch), counted_in(output)
            recorded = weight if counted is None else counted.recorded(weight)
            tracker.update(mean_loss(output["loss"], weight, trainer.loss_reduction), recorded)
            if trainer._metrics.evaluation:
                trainer.update_metrics(batch, output)
        except Exception as error:
            place = f"in calculate_eval_batch_loss, at batch {valid_dl.drawn}"
            error.add_note(f"{place}, for a batch of {describe_batch(batch)}")
            raise
        return output

    def _record(self, tracker: LossTracker, is_training: bool) -> dict[str, Any]:
        trainer, history = self.trainer, self.trainer.run_history
        total, count = trainer.processes.reduce([tracker.total_loss, tracker.running_count])
        if not count:
            raise DataError(
                "the evaluation data gave no sample; check the data set, its filter and its loader, and whether any "
                "target counts"
            )
        loss = "eval_loss_epoch" if is_training else "evaluation_loss"
        found = {loss: total / count, **trainer._metrics.evaluation.compute(trainer.processes)}
        for name, value in found.items():
            history.update_metric(name, value)
        prefix = history.metric_name_prefix
        return {name: history.get_latest_metric(prefix + name) for name in found}

    # By itself ----------------------------------------------------------------------------------------------

    def size(self, asked: int) -> int:
        """Return the batch size of an evaluation: where none was asked for, that of the training, if there was one."""
        run = self.trainer.this_run
        if not (isinstance(asked, DefaultSize) and run.spec.is_for_training):
            return asked
        known = getattr(run.data.training, "batch_size", None)
        return DefaultSize(known or run.spec.per_device_batch_size)

    def evaluate(
        self, data: Any, size: int, dataloader_kwargs: dict[str, Any] | None, collate_fn: Any
    ) -> dict[str, Any]:
        """Run one evaluation epoch on `data` and return its metrics by name; those of training stay as they are."""
        trainer, run = self.trainer, self.trainer.this_run
        looping, of_run, config_of_run = run.stop.looping, run.data, run.config
        history = EvaluationHistory(trainer.run_history)
        collate = collate_fn or of_run.collate_fn
        run.data = replace(
            of_run, eval_dataset=data, collate_fn=collate, eval_kwargs=dataloader_kwargs, evaluation=None
        )
        trainer.run_history, history_of_run = history, trainer.run_history
        try:
            loader = trainer.create_eval_dataloader(size, dataloader_kwargs)
            run.data.evaluation = run.streams.for_evaluation(loader)
            if not looping:
                trainer._prepare_model_and_optimizer()
            # Here too, and wherever it is called: one that a user wrote knows nothing of it.
            trainer.parallel.share_buffers(trainer.model)
            run.config = trainer._create_run_config(
                per_device_batch_size=size,
                num_epochs=1,
                gradient_accumulation_steps=1,
                max_num_train_steps=None,
                gradient_clip_value=None,
            )
            with history.in_use(), trainer.exchange.in_evaluation():
                trainer._run_evaluation()
        finally:
            trainer.run_history = history_of_run
            if run.data.evaluation is not None and run.data.evaluation is not of_run.evaluation:
                run.data.evaluation.close()
            if looping:
                # A callback evaluates in the middle of a run, which then continues with its own data.
                run.data, run.config = of_run, config_of_run
            elif of_run.eval_dataset is not None:
                run.data = replace(run.data, eval_dataset=of_run.eval_dataset, collate_fn=of_run.collate_fn)
        return history.results()

    @torch.no_grad()
    def predict(self, dataset: Any, size: int, dataloader_kwargs: dict[str, Any] | None, collate_fn: Any) -> Any:
        """Return the model's outputs for every sample of `dataset`, in order, on every process."""
        trainer = self.trainer
        trainer.this_run.updater.place_model()
        trainer.parallel.share_buffers(trainer.model)
        kwargs = loader_arguments(dataset, {"batch_size": size}, dataloader_kwargs, "dataloader_kwargs")
        streams = trainer.this_run.streams
        stream = streams.make(
            streams.loader(dataset, **{"shuffle": False, "collate_fn": collate_fn, **kwargs}),
            evaluation=True,
            name="prediction",
        )
        stream.limit = None
        self.find_sparse()
        with closing(stream), trainer.single_precision, self.eval_mode():
            trainer.model.eval()
            passes = [(self._predict_batch(batch), counts) for batch, counts in self._in_step(stream)]
            outputs = [output for output, counts in passes if counts]
        return self._joined(outputs)

    def _predict_batch(self, batch: Batch) -> Any:
        precision = self.trainer.precision
        with precision.autocast("prediction"):
            output = self.trainer.calculate_prediction(batch)
        halved = isinstance(output, Tensor) and output.dtype in (torch.float16, torch.bfloat16)
        return output.float() if halved and not precision.plain else output

    def _joined(self, outputs: list[Any]) -> Any:
        processes = self.trainer.processes
        other = not all(isinstance(output, Tensor) for output in outputs)
        # A rank may have no batch at all: what is done is decided for all of them together.
        rounds, others = processes.reduce([float(len(outputs)), float(other)], "max")
        if not rounds:
            raise DataError("there is nothing to predict: the data gives no batch")
        if others and processes.distributed:
            raise DataError("predict() on several processes needs a tensor from calculate_prediction")
        if not processes.distributed:
            return outputs if others else torch.cat(outputs).cpu()
        shape, dtype = processes.share((outputs[0].shape[1:], outputs[0].dtype) if outputs else None)
        nothing = torch.empty(0, *shape, dtype=dtype, device=self.trainer.device)
        outputs = outputs + [nothing] * (int(rounds) - len(outputs))
        ranks = self.trainer.parallel.data_ranks
        return torch.cat([processes.gather(output, padding_value=0, ranks=ranks) for output in outputs]).cpu()


def size_in(output: dict[str, Any], batch: Batch) -> Any:
    """Return what the loss in `output` is a mean over: items if it says so, else samples."""
    for name in ("num_items_in_batch", "batch_size"):
        if output.get(name) is not None:
            return output[name]
    return size_of(batch)


def mean_loss(loss: Any, weight: Any, reduction: str) -> Any:
    """Return the loss to record: a sum is divided by what it is over, without reading the device."""
    if reduction == "mean":
        return loss
    return loss.detach() / (weight.clamp_min(1) if isinstance(weight, Tensor) else weight or 1)
