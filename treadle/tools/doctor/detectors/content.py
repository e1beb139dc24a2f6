"""What data is made of: its values, its order, and which samples are evaluated."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from treadle.data import size_of
from treadle.tools.doctor.detectors.base import Detector
from treadle.tools.doctor.detectors.samples import (
    Samples,
    fingerprint,
    leaves,
    read,
    rows,
    sample_inputs,
    sample_labels,
)
from treadle.tools.doctor.detectors.statistics import (
    FEWEST_RELATED,
    RELATED,
    SORTED_EFFECT,
    SORTED_Z,
    UNRELATED_Z,
    is_beyond_chance,
    label_excess,
    near_duplicates,
    relation,
    value_excess,
)
from treadle.tools.doctor.findings import Finding

MOST = 4096
"""Samples of an evaluation that are looked at."""
REPEATED_SHARE = 0.01
"""The share of samples from which on repetitions in an evaluation are a fault: some data repeats itself."""
TRAINED_TWICE = 0.2
"""The share of training samples from which on repetitions are a fault: a few are there more often to weigh more."""
OTHER_SCALE = 5.0
"""How many times as large as in training the inputs of an evaluation may be."""
READ_TWICE = 8


class DataContent(Detector):
    """Looks at the batches of the steps, and at samples from all over both sets of data once the run is over."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._labels: list[Tensor] = []
        self._inputs: list[list[Tensor]] = []
        self._bad = 0
        self._uses_labels = self.trainer.loss_func is not None
        self._evaluated: list[Any] = []
        self._sizes: list[float] = []
        self._eval_sizes: list[float] = []
        self._count = 0

    def after_loss(self, batch: Any, output: dict[str, Any]) -> None:
        """Note what a batch is made of."""
        labels = sample_labels(batch)
        if isinstance(labels, Tensor) and labels.dim() in (1, 2) and len(labels) == size_of(batch):
            flat = labels.squeeze(1) if labels.dim() == 2 and labels.shape[1] == 1 else labels
            if flat.dim() == 1:
                self._labels.append(flat.detach().cpu())
        parts = [one.detach() for one in leaves(sample_inputs(batch)) if isinstance(one, Tensor) and one.dim()]
        self._inputs.append([one for one in parts if len(one) == size_of(batch)])
        self._bad += sum(_bad_rows(one) for one in leaves(batch) if isinstance(one, Tensor) and one.dim())
        self._sizes += _size(parts)

    def evaluating(self, batch: Any) -> None:
        """Note the samples of a batch."""
        self._count += size_of(batch)
        self._eval_sizes += _size([one for one in leaves(sample_inputs(batch)) if isinstance(one, Tensor)])
        if len(self._evaluated) < MOST:
            self._evaluated += rows(batch, size_of(batch))

    def findings(self) -> Iterable[Finding]:
        """Return what is wrong with the data."""
        train, held = _loader_data(self.trainer._train_dataloader), _loader_data(self.trainer._eval_dataloader)
        self._train = read(train)
        yield from self._values()
        yield from self._constants()
        yield from self._order()
        yield from self._repetitions()
        yield from self._relation()
        if self._evaluated:
            yield from self._evaluation(held)

    # Training data -------------------------------------------------------------------------------------------

    def _values(self) -> Iterable[Finding]:
        """Look for values that are not finite."""
        bad = (
            []
            if self._train is None
            else [
                index
                for index, item in zip(self._train.indices, self._train.items, strict=True)
                if any(_bad_rows(one[None]) for one in leaves(item) if isinstance(one, Tensor))
            ]
        )
        remedy = "leave these samples out, or fill in the gaps, before training"
        if bad and self._train is not None:
            yield Finding(
                "bad_values",
                f"{len(bad)} of {len(self._train)} samples have values that are not finite (NaN or infinity), the "
                f"first is sample {bad[0]}",
                remedy,
            )
        elif self._bad:
            yield Finding("bad_values", f"{self._bad} samples of the batches have values that are not finite", remedy)

    def _constants(self) -> Iterable[Finding]:
        """Look for inputs, or labels, that are the same in all samples."""
        columns = [list(parts) for parts in zip(*self._inputs, strict=False)]
        samples = sum(len(parts[0]) for parts in self._inputs if parts)
        if columns and samples > 1 and all(map(_is_same, columns)):
            yield Finding(
                "constant_data",
                f"the inputs of all {samples} samples that were looked at are the same",
                "print a few samples of the data set: something replaces them, or reads the same one each time",
            )
        labels = self._all_labels()
        if self._uses_labels and labels is not None and len(labels) >= 16 and _is_same([labels]):
            yield Finding(
                "constant_data",
                f"the labels of all {len(labels)} samples that were looked at are {labels[0].flatten()[0].item():g}",
                "print a few labels of the data set: something overwrites them, or only one class was read",
            )

    def _all_labels(self) -> Tensor | None:
        """Return labels from all over the data, or else those of the batches."""
        if self._train is not None and self._train.labels is not None:
            return self._train.labels
        return torch.cat(self._labels) if self._labels else None

    def _order(self) -> Iterable[Finding]:
        """Look whether the labels of a batch are more alike than by chance."""
        batches, everywhere = [one for one in self._labels if len(one) > 1], self._all_labels()
        if len(batches) < 2 or everywhere is None:
            return
        is_number = batches[0].is_floating_point()
        if not is_number and (everywhere.is_floating_point() or everywhere.dim() > 1):
            everywhere = torch.cat(batches)
        excess = value_excess(batches) if is_number else label_excess(batches, everywhere)
        if excess.z > SORTED_Z and excess.effect > SORTED_EFFECT:
            yield Finding(
                "data_order",
                f"labels within a batch are alike, far more than by chance ({excess.z:.0f} standard deviations in "
                f"{len(batches)} batches): the data is sorted and not shuffled",
                "leave the order to the trainer, or shuffle the data",
            )

    def _repetitions(self) -> Iterable[Finding]:
        """Look for samples that are there several times."""
        if self._train is None or self._train.inputs is None or not _is_continuous(self._train.inputs):
            return
        more = len(self._train) - len(set(self._train.fingerprints))
        if more > TRAINED_TWICE * len(self._train) and len(set(self._train.fingerprints)) > 1:
            yield Finding(
                "repeated_data",
                f"{more} of {len(self._train)} training samples repeat another one",
                "look how the data set is put together; samples that shall weigh more are drawn more often by a "
                "WeightedRandomSampler",
            )

    def _relation(self) -> Iterable[Finding]:
        """Look whether labels have anything to do with inputs."""
        train = self._train
        if train is None or not self._uses_labels or len(train) < FEWEST_RELATED:
            return
        step = -(-len(train) // RELATED)
        inputs, labels = train.inputs, train.labels
        if inputs is None or labels is None or not bool(inputs.isfinite().all()):
            return
        inputs, labels = inputs[::step], labels[::step]
        if _is_same([inputs]) or _is_same([labels]) or (labels.is_floating_point() and not labels.isfinite().all()):
            return
        if not labels.is_floating_point() and len(set(labels.tolist())) > len(labels) // 4:
            return
        beyond = relation(inputs, labels)
        if beyond < UNRELATED_Z:
            yield Finding(
                "unrelated_labels",
                f"labels of {len(inputs)} samples have no more to do with their inputs than labels in random order "
                f"({beyond:.1f} standard deviations from chance)",
                "look whether inputs and labels are in the same order: shuffle both by one permutation",
            )

    # Evaluation ----------------------------------------------------------------------------------------------

    def _evaluation(self, held: Any) -> Iterable[Finding]:
        """Look at which samples are evaluated, and what they look like."""
        seen = [fingerprint(one) for one in self._evaluated]
        repeated = len(seen) - len(set(seen))
        if repeated > REPEATED_SHARE * len(seen):
            yield Finding(
                "evaluation_data",
                f"{repeated} of the first {len(seen)} samples evaluated are repetitions, so that they count more than "
                "once",
                "evaluate each sample once, without replacement or padding",
            )
        length = None if self.trainer.processes.distributed else getattr(held, "__len__", None)
        if length is not None and self._count < int(length()):
            yield Finding(
                "evaluation_data",
                f"{self._count} of {int(length())} samples are evaluated",
                "leave out drop_last and limits, and all of them are",
            )
        yield from self._random_evaluation(held)
        yield from self._overlap(set(seen))
        train, evaluated = _middle(self._sizes), _middle(self._eval_sizes)
        if train and evaluated and not 1 / OTHER_SCALE < evaluated / train < OTHER_SCALE:
            yield Finding(
                "evaluation_data",
                f"inputs are of size {train:.3g} in training and {evaluated:.3g} in evaluation",
                "scale both by the same numbers, those of the training data",
            )

    def _random_evaluation(self, held: Any) -> Iterable[Finding]:
        """Look whether the data set returns the same sample when it is asked for it again."""
        once, again = read(held, READ_TWICE), read(held, READ_TWICE)
        if once is None or again is None:
            return
        other = [
            index
            for index, one, two in zip(once.indices, once.fingerprints, again.fingerprints, strict=True)
            if one != two
        ]
        if other:
            yield Finding(
                "evaluation_data",
                f"{len(other)} of {len(once)} samples to evaluate are others each time they are read (sample "
                f"{other[0]}, for one): random augmentation, so that evaluations differ by chance",
                "give the evaluation data a transform without anything random",
            )

    def _overlap(self, seen: set[str]) -> Iterable[Finding]:
        """Look for samples that are trained on, too, as they are or nearly so."""
        if self._train is None:
            return
        trained = set(self._train.fingerprints)
        common = sum(one in trained for one in seen)
        remedy = "split the data before both sets are made, and before anything is added to it"
        if common > REPEATED_SHARE * len(seen):
            yield Finding(
                "evaluation_data", f"{common} of {len(seen)} samples evaluated are among those trained on", remedy
            )
            return
        some = Samples(list(range(len(self._evaluated))), self._evaluated).inputs
        own = self._train.inputs
        if some is None or own is None or some.shape[1:] != own.shape[1:] or len(own) < 2 or not _is_continuous(own):
            return
        near = near_duplicates(some[:1024], own)
        if is_beyond_chance(near, len(some[:1024])):
            yield Finding(
                "evaluation_data",
                f"{near} of {len(some[:1024])} samples evaluated are nearly the same as one trained on: copies with "
                "noise, or neighbours of one recording",
                remedy,
            )


def _loader_data(loader: Any) -> Any:
    return getattr(loader, "dataset", None)


def _bad_rows(values: Tensor) -> int:
    """Return how many rows have a value that is not finite; a mask of nothing but 0 and minus infinity has none."""
    if not values.is_floating_point() or bool(values.isfinite().all()):
        return 0
    if bool(((values == 0) | (values == -math.inf)).all()):
        return 0
    return int((~values.isfinite()).reshape(len(values), -1).any(1).sum())


def _is_same(parts: list[Tensor]) -> bool:
    """Whether all rows of tensors are the same one."""
    first = parts[0][0]
    return all(one.shape[1:] == first.shape and bool((one == first).all()) for one in parts)


def _is_continuous(inputs: Tensor) -> bool:
    """Whether two samples are hardly the same by chance: numbers are fractions, and there are several."""
    return (
        inputs.shape[1] >= 2 and bool(inputs.isfinite().all()) and bool((inputs != inputs.round()).float().mean() > 0.5)
    )


def _size(parts: list[Tensor]) -> list[float]:
    """Return the usual size of the numbers of a batch, if they are fractions."""
    numbers = [one.detach().float() for one in parts if one.is_floating_point() and one.numel()]
    return [float(torch.cat([one.flatten() for one in numbers]).square().mean().sqrt())] if numbers else []


def _middle(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median()) if values else 0.0
