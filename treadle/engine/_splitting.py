"""Going on with a run when its batches are split over the processes otherwise than before."""

import logging
from typing import Any

import torch

from treadle.checkpoint import CheckpointStore
from treadle.data import fold_seed
from treadle.errors import CheckpointError
from treadle.trainer import Trainer

logger = logging.getLogger(__name__)


class Splitting(Trainer):
    """A core trainer whose checkpoints fit any number of processes: samples position the data, not batches."""

    _odd_samples = 0

    @property
    def consumed_samples(self) -> int:
        """How many samples all processes together were trained on, in all starts of the run."""
        return self.progress.samples * self.processes.size + self._odd_samples

    def _identity(self) -> dict[str, Any]:
        """Return what must be the same for a run to go on; how a batch is split over processes need not be."""
        identity = super()._identity()
        split = identity["batch"]
        if split["per device"] is not None:
            identity["batch"] = {"global": split["per device"] * split["accumulation"] * split["processes"]}
        return identity

    def _state(self) -> dict[str, Any]:
        assert self.run_config is not None
        own = {"batch_size": self.run_config.train_per_device_batch_size, "odd_samples": self._odd_samples}
        return {**super()._state(), **own}

    def _read_own(self, store: CheckpointStore, step: int, shared: dict[str, Any]) -> dict[str, Any]:
        if shared["processes"] == self.processes.size:
            return super()._read_own(store, step, shared)
        text = "the run had %d processes and has %d now: it goes on with the next samples, but not bit for bit"
        logger.info(text, shared["processes"], self.processes.size)
        return shared

    def _load_state(self, shared: dict[str, Any], own: dict[str, Any], *, partly: bool = False) -> None:
        self._odd_samples = int(shared.get("odd_samples", 0))
        if self._is_split_as_now(shared):
            super()._load_state(shared, own, partly=partly)
            return
        split_anew = self._split_anew(shared)
        super()._load_state(split_anew, split_anew, partly=partly)
        if not self.processes.is_main:
            # The first process goes on with its random numbers; the others, new or not, begin with others.
            torch.manual_seed(fold_seed(self._data_seed, self.processes.rank, self.progress.step))

    def _is_split_as_now(self, state: dict[str, Any]) -> bool:
        assert self.run_config is not None
        size = self.run_config.train_per_device_batch_size
        return state["processes"] == self.processes.size and state.get("batch_size", size) == size

    def _split_anew(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state with its place in the data for the batches of now: the samples seen are the same.

        Raises:
            CheckpointError: The place lies inside a batch of now.
        """
        assert self.run_config is not None
        size = self.run_config.train_per_device_batch_size
        place = dict(state["tracked"]["stream_train"])
        seen = place["drawn"] * state["processes"] * (state["batch_size"] or 0)
        at_once = self.processes.size * (size or 0)
        if not at_once or seen % at_once:
            raise CheckpointError(
                f"the checkpoint is after {seen} samples of epoch {place['epoch']}, inside a batch of {at_once} on "
                f"{self.processes.size} processes; use {state['processes']} with batches of {state['batch_size']}"
            )
        place |= {"drawn": seen // at_once, "last": 0}
        progress = dict(state["tracked"]["progress"])
        consumed = progress["samples"] * state["processes"] + self._odd_samples
        # What cannot be shared out evenly among the processes of now is counted apart.
        progress["samples"], self._odd_samples = divmod(consumed, self.processes.size)
        tracked = {**state["tracked"], "stream_train": place, "progress": progress}
        return {**state, "processes": self.processes.size, "tracked": tracked}
