"""What every evaluator is."""

from collections.abc import Sequence
from typing import Any

from treadle.errors import ConfigError
from treadle.verbs import refuse_misspelt


class DatasetEvaluator:
    """Takes what a model says of the samples of a data set, batch by batch, and makes numbers of it at the end.

    Every sample comes exactly once. With several processes, `process` gets the samples of all of them, on each; an
    evaluator that sets `local` gets those of its own process only, and joins its sums in `evaluate`.
    """

    local: bool = False
    """Whether `process` is to be given the samples of its own process only."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_misspelt(cls, ("reset", "process", "evaluate"))

    def reset(self) -> None:
        """Begin anew."""

    def process(self, inputs: Any, outputs: Any) -> None:
        """Take the inputs and outputs of the model for one batch."""

    def evaluate(self) -> dict[str, Any]:
        """Return the numbers by name; nested dicts are reported as `a/b`."""
        return {}


class DatasetEvaluators(DatasetEvaluator):
    """Several evaluators as one.

    Args:
        evaluators: The evaluators; no two may return a number of the same name.
    """

    def __init__(self, evaluators: Sequence[DatasetEvaluator]) -> None:
        self._evaluators = list(evaluators)
        self.local = all(evaluator.local for evaluator in self._evaluators)
        if not self.local and any(evaluator.local for evaluator in self._evaluators):
            names = [type(evaluator).__name__ for evaluator in self._evaluators if evaluator.local]
            raise ConfigError(f"evaluators that are local, {names}, cannot be joined with others; run them apart")

    def reset(self) -> None:
        """Begin anew."""
        for evaluator in self._evaluators:
            evaluator.reset()

    def process(self, inputs: Any, outputs: Any) -> None:
        """Hand one batch to all."""
        for evaluator in self._evaluators:
            evaluator.process(inputs, outputs)

    def evaluate(self) -> dict[str, Any]:
        """Return the numbers of all."""
        results: dict[str, Any] = {}
        for evaluator in self._evaluators:
            own = evaluator.evaluate() or {}
            twice = sorted(set(own) & set(results))
            if twice:
                raise ConfigError(f"two evaluators report {twice}; rename what one of them returns")
            results |= own
        return results
