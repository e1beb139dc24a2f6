"""ProxylessNAS: one candidate at a time for the weights, two for the architecture."""

from typing import Any

from torch.optim import Optimizer

from treadle.data import fold_seed
from treadle.nas.oneshot._core import ARCHITECTURE, SearchCore
from treadle.nas.oneshot._paths import compiled_parts, refuse_recording
from treadle.nas.oneshot._weighing import WeighingCore
from treadle.nas.oneshot._weighing_face import WeighingTrainer
from treadle.nas.oneshot.supernet import Supernet
from treadle.nas.oneshot.two_paths import PathWeights, TwoPaths, rows_of_paths
from treadle.nas.space import Space
from treadle.phase import Phase


class ProxylessCore(WeighingCore):
    """Draws a path for every update of the weights, and two for every update of the architecture."""

    def before_update(self, phase: Phase) -> None:
        """Draw the candidates of this step."""
        super().before_update(phase)
        weights, chooser = self.model.weights, self.model.chooser
        assert isinstance(weights, PathWeights)
        assert isinstance(chooser, TwoPaths)
        seed = fold_seed(self.search.seed, "paths", self.progress.step)
        if phase.name == ARCHITECTURE:
            pairs = weights.draw_pairs(seed)
            chooser.active, chooser.other = [one for one, _ in pairs], [other for _, other in pairs]
        else:
            chooser.active, chooser.other = weights.draw(seed), None

    def optimizer_step(self) -> None:
        """Update; of the architecture only what was compared."""
        weights = self.model.weights
        assert isinstance(weights, PathWeights)
        before = weights.alpha.detach().clone()
        super().optimizer_step()
        phase = self.this_run.updater.phase
        if phase is not None and phase.name == ARCHITECTURE:
            weights.rescale(before)

    def eval_epoch_start(self) -> None:
        """Evaluate the heaviest candidates."""
        super().eval_epoch_start()
        chooser = self.model.chooser
        assert isinstance(chooser, TwoPaths)
        chooser.active, chooser.other = self.model.weights.probabilities().argmax(-1).tolist(), None


class ProxylessTrainer(WeighingTrainer):
    """Trains one candidate of each choice at a time, and compares two to learn which is better (ProxylessNAS).

    It takes the memory of a single network. Candidates are drawn by their weights, from the seed and the number of the
    step; to know them, the host waits for the device once a step, so steps cannot be recorded. An update of the
    architecture moves weight between the two candidates that were compared and leaves that of all others as it is.

    Args:
        args: As for every one-shot trainer: model, loss, metrics, optimizer, num_epochs, dataset.
        arc_learning_rate: The learning rate of the weights of candidates.
        kwargs: As for every one-shot trainer; and `arc_optimizer` for the weights of candidates.
    """

    betas = (0.0, 0.999)
    decay = 0.0

    def __init__(self, *args: Any, arc_learning_rate: float = 1e-3, **kwargs: Any) -> None:
        refuse_recording(type(self).__name__, kwargs)
        super().__init__(*args, arc_learning_rate=arc_learning_rate, **kwargs)

    def _make_supernet(self, space: Space) -> Supernet:
        rows = rows_of_paths(space, type(self).__name__)
        seed = None if self._seed is None else fold_seed("alpha", self._seed)
        return Supernet(space, TwoPaths(rows), PathWeights(rows, seed))

    def _make_core(
        self, supernet: Supernet, loss: Any, optimizers: dict[str, Optimizer], options: dict[str, Any]
    ) -> SearchCore:
        return ProxylessCore(supernet, loss, optimizers, self._plan, compiled_parts(self._space, options))

    def _finished(self) -> None:
        chooser = self.supernet.chooser
        assert isinstance(chooser, TwoPaths)
        chooser.active, chooser.other = self.supernet.weights.probabilities().argmax(-1).tolist(), None
