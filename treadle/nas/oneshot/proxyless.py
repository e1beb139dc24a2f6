"""ProxylessNAS: one candidate at a time for the weights, two for the architecture."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from treadle.data import fold_seed
from treadle.errors import ConfigError
from treadle.nas.oneshot.core import ARCHITECTURE
from treadle.nas.oneshot.differentiable import DifferentiableCore, DifferentiableTrainer
from treadle.nas.oneshot.single_path import compiled_parts, refuse_recording
from treadle.nas.oneshot.supernet import CandidateWeights, Rows, Supernet, gumbel_noise
from treadle.nas.space.choosers import Chooser
from treadle.nas.space.input_choice import InputChoice
from treadle.nas.space.layer_choice import LayerChoice
from treadle.nas.space.model_space import Space
from treadle.nas.space.repeat import Repeat
from treadle.nas.space.value_choice import Leaf
from treadle.nas.space.weighted_sum import weighted_sum
from treadle.phase import Phase

# Two candidates at a time: one that is used, and one that is compared with it


def find_path_rows(space: Space, trainer: str) -> Rows:
    """Return the candidates of each decision of a space in which every choice takes one.

    Raises:
        ConfigError: The space has something else in it, which is named.
    """
    for place, choice in space.choices.items():
        simple = isinstance(choice, LayerChoice) or (isinstance(choice, InputChoice) and choice.n_chosen == 1)
        simple = simple or (isinstance(choice, Repeat) and len(choice.depth.leaves()) < 2)
        if not simple:
            raise ConfigError(
                f"{trainer} compares two candidates at a time, which the {type(choice).__name__} at {place} does not "
                "have; use layer choices, input choices of one tensor and repeated blocks, or another trainer"
            )
    for leaf, user in space.values:
        if user is None:
            raise ConfigError(f"{trainer} cannot compare the values of {leaf.key!r}, which is read in a forward")
    found = {label: decision.candidates for label, decision in space.decisions.items()}
    if not found:
        raise ConfigError(f"{trainer}: the model has no choices; put a LayerChoice or an InputChoice into it")
    return found


FACTOR = 1_000_003
"""What a seed is multiplied by for the two kinds of chance that come of it."""


class PathWeights(CandidateWeights):
    """Weights of candidates, of which two at a time are learnt.

    Args:
        rows: The candidates of each row.
        seed: What the first weights are drawn with.
    """

    pair: Tensor

    def __init__(self, rows: Rows, seed: int | None = None) -> None:
        super().__init__(rows, seed)
        self.register_buffer("pair", torch.zeros(len(rows), 2, dtype=torch.long), persistent=False)

    @torch.no_grad()
    def draw(self, seed: int) -> list[int]:
        """Return a candidate for each row, drawn by their weights; this waits for the device."""
        places: list[int] = (self._logits() + self._noise(seed)).argmax(-1).tolist()
        return places

    @torch.no_grad()
    def draw_pairs(self, seed: int) -> list[tuple[int, int]]:
        """Draw two candidates for each row by their weights, the one to be used first; this waits for the device.

        A row with a single candidate has it twice.
        """
        noisy = self._logits() + self._noise(seed)
        two = noisy.topk(min(2, noisy.shape[1]), dim=-1).indices
        alone = self.known.sum(-1, keepdim=True) < 2
        two = two[:, [0, -1]].where(~alone, two[:, [0, 0]])
        shares = self._logits().gather(1, two).softmax(-1)
        chance = torch.rand(len(two), generator=torch.Generator().manual_seed(seed * FACTOR + 1)).to(shares.device)
        swapped = (chance >= shares[:, 0]).unsqueeze(1)
        self.pair.copy_(torch.where(swapped, two.flip(1), two))
        return [(first, second) for first, second in self.pair.tolist()]

    def _noise(self, seed: int) -> Tensor:
        return gumbel_noise(self.alpha.shape, seed * FACTOR).to(self.alpha)

    def gates(self) -> Tensor:
        """Return the gates of the two candidates of each row: one and zero, with the gradients of their weights."""
        shares = self.alpha.gather(1, self.pair).softmax(-1)
        open_first = torch.zeros_like(shares)
        open_first[:, 0] = 1.0
        return open_first + shares - shares.detach()

    @torch.no_grad()
    def rescale(self, before: Tensor) -> None:
        """Let an update move weight between the two candidates of each row only: all others weigh what they did."""
        involved = torch.zeros_like(self.known).scatter_(1, self.pair, True)
        new, old = self.alpha.gather(1, self.pair), before.gather(1, self.pair)
        offset = new.logsumexp(-1, keepdim=True) - old.logsumexp(-1, keepdim=True)
        self.alpha.copy_(torch.where(involved, self.alpha - offset, before))


class TwoPaths(Chooser):
    """Goes one way, and where two are compared looks at what the other would have given.

    Args:
        rows: The candidates of each row.

    Attributes:
        active: For each row the place of the candidate that is used.
        other: For each row the place of the one it is compared with; None if nothing is compared.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._places = {label: place for place, label in enumerate(rows)}
        self.active = [0] * len(rows)
        self.other: list[int] | None = None
        self.gates: Tensor = torch.empty(0)

    def prepare(self, architecture: Any) -> None:
        """Take the gates of this pass."""
        if self.other is not None:
            self.gates = architecture.gates()

    def pick(self, label: str, default: Any) -> Any:
        """Return the candidate that is used."""
        return self._rows[label][self.active[self._places[label]]]

    def _compared(self, label: str, run: Callable[[int], Any]) -> Any:
        """Return what the one candidate gives, with the other behind a closed gate."""
        place = self._places[label]
        active = self.active[place]
        if self.other is None or self.other[place] == active:
            return run(active)
        outputs = [run(active)]
        with torch.no_grad():
            outputs.append(run(self.other[place]))
        return weighted_sum(self.gates[place], outputs, where=label)

    def layer(self, choice: LayerChoice, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the candidate gives."""
        candidates = list(choice)
        return self._compared(choice.current_label, lambda place: candidates[place](*args, **kwargs))

    def inputs(self, choice: InputChoice, tensors: Sequence[Tensor]) -> Any:
        """Return the tensor."""
        result = self._compared(choice.current_label, lambda place: tensors[place])
        return [result] if choice.reduction == "none" else result

    def repeat(self, choice: Repeat, state: Any) -> Any:
        """Return the state at the depth."""
        leaves = choice.depth.leaves()
        if not leaves:
            return super().repeat(choice, state)
        blocks = list(choice.blocks())

        def run(place: int) -> Any:
            reached = state
            for block in blocks[: choice.depth.compute(lambda one: self._candidate(one, place))]:
                reached = block(reached)
            return reached

        return self._compared(leaves[0].current_label, run)

    def _candidate(self, leaf: Leaf, place: int) -> Any:
        return leaf.as_given(self._rows[leaf.current_label][place])


class ProxylessCore(DifferentiableCore):
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
        self.choose_heaviest()

    def choose_heaviest(self) -> None:
        """Have the passes that follow use the heaviest candidates."""
        chooser = self.model.chooser
        assert isinstance(chooser, TwoPaths)
        chooser.active, chooser.other = self.model.weights.probabilities().argmax(-1).tolist(), None


class ProxylessTrainer(DifferentiableTrainer):
    """Trains one candidate of each choice at a time, and compares two to learn which is better (ProxylessNAS).

    It takes the memory of a single network. Candidates are drawn by their weights, from the seed and the number of the
    step; to know them, the host waits for the device once a step, so steps cannot be recorded. An update of the
    architecture moves weight between the two candidates that were compared and leaves that of all others as it is.

    Args:
        args: As for every one-shot trainer: model, loss, metrics, optimizer, num_epochs, dataset.
        arc_learning_rate: The learning rate of the weights of candidates.
        kwargs: As for every one-shot trainer; and `arc_optimizer` for the weights of candidates.
    """

    core: ProxylessCore
    core_type = ProxylessCore
    betas = (0.0, 0.999)
    decay = 0.0

    def __init__(self, *args: Any, arc_learning_rate: float = 1e-3, **kwargs: Any) -> None:
        refuse_recording(type(self).__name__, kwargs)
        super().__init__(*args, arc_learning_rate=arc_learning_rate, **kwargs)

    def _make_supernet(self, space: Space) -> Supernet:
        rows = find_path_rows(space, type(self).__name__)
        return Supernet(space, TwoPaths(rows), PathWeights(rows, self._weights_seed))

    def _core_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return compiled_parts(self._space, options)

    def _finished(self) -> None:
        self.core.choose_heaviest()
