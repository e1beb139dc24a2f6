"""Loops of your own as pytorch-accelerated's source has them, told again: a program may have copied any of them."""

import math
from typing import Any

import torch

from treadle import Trainer
from treadle.errors import StopTrainingError


class OwnTrainEpoch(Trainer):
    """An epoch as pytorch-accelerated runs it: accumulation, clipping and the limit by steps are the loop's."""

    def _run_train_epoch(self, train_dl: Any) -> bool:
        self.train_epoch_start()
        self._loss_tracker.reset()
        self.callback_handler.call_event("on_train_epoch_start", self)
        config, over = self.run_config, False
        assert config is not None
        assert config.num_update_steps_per_epoch is not None
        done = (self.run_history.current_epoch - 1) * config.num_update_steps_per_epoch
        for step, batch in enumerate(train_dl):
            self.callback_handler.call_event("on_train_step_start", self)
            updates = (step + 1) % config.gradient_accumulation_steps == 0 or step + 1 == len(train_dl)
            if updates:
                self._perform_forward_and_backward_passes(batch, step)
            else:
                with self._accelerator.no_sync(self.model):
                    self._perform_forward_and_backward_passes(batch, step)
            if config.gradient_clip_value is not None:
                self._clip_gradients()
            if not updates:
                continue
            self.optimizer_step()
            if self.scheduler is not None and not self._accelerator.optimizer_step_was_skipped:
                self.scheduler_step()
            self.optimizer_zero_grad()
            made = done + math.ceil((step + 1) / config.gradient_accumulation_steps)
            if config.max_num_train_steps is not None and made >= config.max_num_train_steps:
                over = True
                break
        self.train_epoch_end()
        self._add_epoch_loss_to_run_history("train_loss_epoch")
        self.callback_handler.call_event("on_train_epoch_end", self)
        return over


class OwnEvalEpoch(Trainer):
    """An evaluation as pytorch-accelerated runs it, by the loss tracker of the trainer."""

    def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> Any:
        self.eval_epoch_start()
        self._loss_tracker.reset()
        self.callback_handler.call_event("on_eval_epoch_start", self, is_intermediate=is_intermediate)
        uneven = self._accelerator.join_uneven_inputs([self.model], even_batches=self._pad_uneven_eval_batches)
        with self._accelerator.no_sync(self.model), uneven, torch.no_grad():
            for batch in valid_dl:
                self.callback_handler.call_event("on_eval_step_start", self)
                output = self.calculate_eval_batch_loss(batch)
                self._update_loss_tracker(output["loss"], output["batch_size"])
                self.callback_handler.call_event("on_eval_step_end", self, batch_output=output, batch=batch)
        self.eval_epoch_end()
        by_itself = "eval_loss_epoch" if is_training else "evaluation_loss"
        self._add_epoch_loss_to_run_history("intermediate_eval_loss" if is_intermediate else by_itself)
        self.callback_handler.call_event("on_eval_epoch_end", self, is_intermediate=is_intermediate)


class OwnTraining(Trainer):
    """A run as pytorch-accelerated runs it."""

    def _run_training(self) -> None:
        self.training_run_start()
        self.callback_handler.call_event("on_training_run_start", self)
        assert self.run_config is not None
        assert self.run_config.num_epochs is not None
        for epoch in range(self.run_config.num_epochs):
            try:
                over = self._run_train_epoch(self._train_dataloader)
                if self.eval_dataset is not None:
                    self._run_eval_epoch(self._eval_dataloader)
                self.training_run_epoch_end()
                self.callback_handler.call_event("on_training_run_epoch_end", self)
                self.run_history._increment_epoch()
            except StopTrainingError as reason:
                self._accelerator.print(reason)
                self.callback_handler.call_event("on_stop_training_error", self)
                break
            if over:
                self.print(f"all steps were made in epoch {epoch + 1}")
                break
        self.training_run_end()
        self.callback_handler.call_event("on_training_run_end", self)


class OwnEverything(OwnTrainEpoch, OwnEvalEpoch, OwnTraining):
    """All three."""
