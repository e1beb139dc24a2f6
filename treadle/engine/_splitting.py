"""Counting samples when the batches of a run are split over the processes otherwise than before."""

from typing import Any

from treadle.resplitting import Split
from treadle.trainer import Trainer


class Splitting(Trainer):
    """A core trainer that counts the samples of all processes, in all starts of a run."""

    _odd_samples = 0

    @property
    def consumed_samples(self) -> int:
        """How many samples all processes together were trained on, in all starts of the run."""
        return self.progress.samples * self.parallel.data_size + self._odd_samples

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "odd_samples": self._odd_samples}

    def _load_state(self, shared: dict[str, Any], own: dict[str, Any], *, partly: bool = False) -> None:
        super()._load_state(shared, own, partly=partly)
        then = Split.of_state(shared, self._split())
        consumed = int(shared["tracked"]["progress"]["samples"]) * then.data + int(shared.get("odd_samples", 0))
        # What cannot be shared out evenly among the processes of now is counted apart.
        self.progress.samples, self._odd_samples = divmod(consumed, self.parallel.data_size)
