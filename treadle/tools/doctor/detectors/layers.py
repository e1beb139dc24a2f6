"""Layers: in the wrong mode, with settings that leave nothing to learn, or given numbers that are not for them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from treadle.errors import some_of
from treadle.tools.doctor.detectors.base import Detector, asked_by_torch, running_line
from treadle.tools.doctor.findings import Finding

# Modules that train in the mode for evaluation, or the other way round


MODAL = (_DropoutNd, _NormBase, nn.MultiheadAttention, nn.RNNBase)
"""Modules that do something else in each of the modes."""


class TrainingMode(Detector):
    """Looks at the mode of every module when a loss has been computed."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._training: dict[str, None] = {}
        self._evaluating: dict[str, None] = {}

    def after_loss(self, batch: Any, output: dict[str, Any]) -> None:
        """Note what was not in the mode for training."""
        for name, module in self.trainer.model.named_modules():
            if isinstance(module, MODAL) and not module.training and not _is_frozen_norm(module):
                self._training[name] = None

    def evaluating(self, batch: Any) -> None:
        """Note what was in the mode for training."""
        for name, module in self.trainer.model.named_modules():
            if isinstance(module, MODAL) and module.training:
                self._evaluating[name] = None

    def findings(self) -> Iterable[Finding]:
        """Return what was in the wrong mode."""
        if self._training:
            yield Finding(
                "wrong_mode",
                f"{some_of(list(self._training))} trained in evaluation mode; somebody called eval() after the "
                "trainer had called train()",
                "look for eval() in the forward pass and in callbacks, and leave the modes to the trainer",
            )
        if self._evaluating:
            yield Finding(
                "wrong_mode",
                f"{some_of(list(self._evaluating))} was evaluated in training mode; somebody called train() after "
                "the trainer had called eval()",
                "look for train() in the forward pass and in callbacks, and leave the modes to the trainer",
            )


def _is_frozen_norm(module: nn.Module) -> bool:
    """Whether a norm is kept as it is on purpose: its weights do not learn either."""
    return isinstance(module, _NormBase) and not any(one.requires_grad for one in module.parameters())


# Dropout that drops nearly everything, or drops in evaluation


MOST_DROPPED = 0.9
DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})


class Dropout(Detector):
    """Looks at how much is dropped, by layers and by functions."""

    def begin(self) -> None:
        """Look at the layers; functions are seen when they are called."""
        named = [
            (name, float(getattr(module, "p" if isinstance(module, _DropoutNd) else "dropout", 0.0)))
            for name, module in self.trainer.model.named_modules()
            if isinstance(module, (_DropoutNd, nn.MultiheadAttention, nn.RNNBase))
        ]
        self._layers = [f"{name or 'the model'} ({rate:g})" for name, rate in named if rate >= MOST_DROPPED]
        self._called: dict[tuple[str, int], float] = {}
        self._evaluated: dict[tuple[str, int], None] = {}

    def asked(self, name: str, func: Any, args: Any, options: dict[str, Any]) -> None:
        """Note a call of a dropout function by the program."""
        if name not in DROPOUTS or asked_by_torch():
            return
        rate, training = float(options.get("p", 0.5)), options.get("training", True)
        if training and rate and (place := running_line()):
            if self.evaluation:
                self._evaluated[place] = None
            elif rate >= MOST_DROPPED:
                self._called[place] = rate

    def findings(self) -> Iterable[Finding]:
        """Return what is dropped too much, or at the wrong time."""
        remedy = "use 0.1 to 0.5; it is the share that is dropped, not the share that is kept"
        if self._layers:
            yield Finding("dropout", f"of what passes {some_of(self._layers)}, next to nothing is left", remedy)
        for place, rate in self._called.items():
            yield Finding("dropout", f"{rate:.0%} of what passes this line is dropped", remedy, *place)
        for place in self._evaluated:
            yield Finding(
                "wrong_mode",
                "this dropout drops in evaluation, too: as a function it does not know the mode of the model",
                "pass training=self.training, or use nn.Dropout",
                *place,
            )


# Batch norms that have too few numbers to take a mean of


FEWEST_VALUES = 4


class BatchNorms(Detector):
    """Counts the numbers that each channel of a batch norm has in a batch."""

    def begin(self) -> None:
        """Listen to the norms."""
        self._fewest: dict[str, int] = {}
        self._by_rows: dict[str, bool] = {}
        self._handles = [
            module.register_forward_pre_hook(self._watch(name))
            for name, module in self.trainer.model.named_modules()
            if isinstance(module, _BatchNorm)
        ]

    def _watch(self, name: str) -> Any:
        def look(module: nn.Module, inputs: Any) -> None:
            if module.training and inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() > 1:
                count = inputs[0].numel() // max(1, inputs[0].shape[1])
                self._fewest[name] = min(count, self._fewest.get(name, count))
                self._by_rows[name] = count == len(inputs[0])

        return look

    def findings(self) -> Iterable[Finding]:
        """Return which norms see too little, now or in the last batch of an epoch."""
        for handle in self._handles:
            handle.remove()
        few = [name for name, count in self._fewest.items() if count < FEWEST_VALUES]
        remedy = "use larger batches, or a norm that needs no batch, such as GroupNorm or LayerNorm"
        if few:
            yield Finding(
                "batch_norm",
                f"{some_of(few)} takes mean and deviation of {min(self._fewest[name] for name in few)} numbers in "
                "each batch: what it returns is noise, or nothing at all",
                remedy,
            )
        elif any(self._by_rows.values()) and self._last_batch() == 1:
            yield Finding(
                "batch_norm",
                "the last batch of each epoch has one sample, of which a batch norm can take no deviation: the run "
                "will fail there",
                'pass train_dataloader_kwargs={"drop_last": True}, or another batch size',
            )

    def _last_batch(self) -> int:
        """Return how many samples are in the last batch of an epoch; 0 if that is not known."""
        loader = next(iter(self.trainer.streams.values())).source
        size, data = getattr(loader, "batch_size", None), getattr(loader, "dataset", ())
        if not size or getattr(loader, "drop_last", True) or not hasattr(data, "__len__"):
            return 0
        return int(len(data) % size)


# Numbers that a first layer is given


LARGE, SMALL = 30.0, 0.02
"""Inputs whose usual size is above the one, or of which none is above the other, are not scaled. Data that is scaled to
mean 0 and deviation 1, or from 0 to 1, is far from both."""
WEIGHTED = (nn.Linear, _ConvNd, nn.RNNBase, nn.MultiheadAttention)


class InputScale(Detector):
    """Looks at what the first layer with weights is given: layers are made for numbers around 1.

    A model that scales by itself, or begins with a norm or an embedding, is left in peace.
    """

    def begin(self) -> None:
        """Listen to layers."""
        self._first, self._listening = True, False
        self._seen: list[Tensor] = []
        self._name = ""
        self._handles = [
            module.register_forward_pre_hook(self._watch(name, module))
            for name, module in self.trainer.model.named_modules()
            if isinstance(module, (*WEIGHTED, _NormBase, nn.LayerNorm, nn.GroupNorm, nn.Embedding, nn.EmbeddingBag))
        ]

    def _watch(self, name: str, module: nn.Module) -> Any:
        def look(module: nn.Module, inputs: Any) -> None:
            first, self._first = self._first, False
            if not first or not self._listening or not isinstance(module, WEIGHTED) or not inputs:
                return
            given = inputs[0]
            if isinstance(given, Tensor) and given.is_floating_point() and given.numel():
                numbers = given.detach().float()
                self._seen.append(torch.stack([numbers.square().mean().sqrt(), numbers.abs().max()]))
                self._name = name

        return look

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Listen in the passes of an update."""
        self._first = self._listening = True
        try:
            yield
        finally:
            self._listening = False

    def findings(self) -> Iterable[Finding]:
        """Return whether what comes in is far too large, or far too small."""
        for handle in self._handles:
            handle.remove()
        if not self._seen:
            return
        usual, largest = torch.stack(self._seen).double().median(0).values.tolist()
        layer = self._name or "the model"
        # Where there are gaps, neither is the case; those are told by themselves.
        if usual > LARGE:
            yield Finding(
                "input_scale",
                f"{layer} is given inputs of size {usual:.3g} (the largest is {largest:.3g}), and layers are made for "
                "numbers around 1: gradients and steps are too large by as much",
                "scale the inputs, to mean 0 and deviation 1 of the training data, or pictures by 1/255",
            )
        elif 0 < largest < SMALL:
            yield Finding(
                "input_scale",
                f"{layer} is given inputs of at most {largest:.3g}, and layers are made for numbers around 1: what "
                "comes in hardly shows in what goes out",
                "scale the inputs to mean 0 and deviation 1 of the training data; they may have been scaled twice",
            )
