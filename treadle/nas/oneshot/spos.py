"""SPOS: weights trained on random paths, then a ranked search among the networks that share them."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from treadle.data import Batch, Stream, fold_seed, size_of
from treadle.errors import ConfigError
from treadle.nas.oneshot.core import is_ready
from treadle.nas.oneshot.evolution import Evolution
from treadle.nas.oneshot.single_path import SinglePathCore, SinglePathTrainer
from treadle.nas.oneshot.trainer import Found
from treadle.nas.space.decisions import Architecture
from treadle.ops.eval_mode import eval_mode
from treadle.ops.losses import model_inputs
from treadle.phase import Phase

# Batch norms that are given the statistics of one network of a space


@contextmanager
def recalibrated(model: nn.Module, passes: Iterable[Any]) -> Iterator[None]:
    """Let the batch norms of a model have the statistics of some passes inside of the block, and their own after it.

    The model is in evaluation mode inside of the block.

    Args:
        model: The model.
        passes: Each item makes a pass through the model when it is asked for.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    buffers = [buffer for norm in norms for buffer in norm.buffers()]
    before = [buffer.clone() for buffer in buffers]
    with eval_mode(model):
        try:
            for norm in norms:
                norm.reset_running_stats()
                # Without a momentum, statistics are the mean over all passes.
                norm.momentum = None
                norm.train()
            with torch.no_grad():
                for _ in passes:
                    pass
            model.eval()
            yield
        finally:
            with torch.no_grad():
                for buffer, own in zip(buffers, before, strict=True):
                    buffer.copy_(own)
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum


EVOLUTION = "evolution"
ATTEMPTS = 1000


class SposCore(SinglePathCore):
    """Trains a random path in every step; in a last epoch every step judges one architecture."""

    training_epochs = 0
    evolution: Evolution
    accept: Callable[[Architecture], bool] | None = None
    recalibration_batches = 20
    objective: str | None = None

    def phases(self, epoch: int) -> Iterable[Phase]:
        """Yield the weights; after the last epoch of training the search."""
        train = self.streams["train"]
        if epoch < self.training_epochs:
            yield self.weights_phase(train)
        else:
            phase = self.weights_phase(train, steps=self.evolution.total)
            phase.name, phase.draws, phase.scheduler = EVOLUTION, False, None
            yield phase

    def track_search(self) -> None:
        """Name what changes while the search goes on, the evolution among it."""
        super().track_search()
        self.evolution.seed = self.this_run.streams.seed
        self.evolution.judged.clear()
        self.track(evolution=self.evolution)
        self._kept: list[Batch] | None = None

    def before_update(self, phase: Phase) -> None:
        """Draw the path of this step."""
        if phase.name != EVOLUTION:
            chance = random.Random(fold_seed(self.search.seed, "path", self.progress.step))
            self.choose(self._draw(chance))

    def _draw(self, chance: random.Random) -> Architecture:
        space = self.model.choices
        for _ in range(ATTEMPTS):
            architecture = space.sample(chance)
            if self.accept is None or self.accept(architecture):
                return architecture
        raise ConfigError(f"accept= refused {ATTEMPTS} random architectures; make it wider")

    def update(self, phase: Phase, window: list[Batch]) -> None:
        """Make an update of the weights, or judge an architecture."""
        if phase.name != EVOLUTION:
            super().update(phase, window)
            return
        updater = self.this_run.updater
        updater.phase, updater.stepped, updater.samples = phase, True, 0
        architecture = self.evolution.propose()
        if architecture is None:
            return
        score = self.judge(architecture)
        self.evolution.tell(architecture, score)
        self.storage.put_scalar("architecture_score", score, smoothing_hint=False)

    # Judging ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def judge(self, architecture: Architecture) -> float:
        """Return how good a network of the space is on the validation data, with batch norms of its own."""
        space = self.model.space
        self.choose(architecture)
        with self.this_run.evaluator.eval_mode(), recalibrated(space, self._passes()):
            self.processes.share_buffers(space)
            total = count = 0.0
            stream = self._judging_stream()
            for batch in stream.rest():
                size = size_of(batch)
                total += size * float(self.score(self._outputs(batch), batch, self.plan.metrics, self.objective))
                count += size
            total, count = self.processes.reduce([total, count])
        return total / count

    def _passes(self) -> Iterator[None]:
        for batch in self._recalibration():
            self._outputs(batch)
            yield

    def _outputs(self, batch: Batch) -> Any:
        args, kwargs = model_inputs(batch)
        with self.precision.autocast("judging"):
            return self.model(*args, **kwargs)

    def _recalibration(self) -> list[Batch]:
        """Return some batches of the training data, always the same."""
        if self._kept is None:
            options = {} if is_ready(self.train_dataset) else self._loading()
            streams, given = self.this_run.streams, {"shuffle": True, "collate_fn": self.collate_fn, **options}
            stream = streams.make(streams.loader(self.train_dataset, **given), name="recalibration")
            stream.reseed(self.search.seed)
            stream.begin(0)
            self._kept = list(islice(stream.rest(), self.recalibration_batches))
            stream.close()
        return self._kept

    def _loading(self) -> dict[str, Any]:
        options = {"batch_size": self.plan.batch_size, **self.plan.loader_options, "num_workers": 0}
        return {name: value for name, value in options.items() if name not in ("shuffle", "persistent_workers")}

    def _judging_stream(self) -> Stream:
        data = self.plan.validation
        options = {} if is_ready(data) else self._loading()
        streams = self.this_run.streams
        stream = streams.make(streams.loader(data, **{"shuffle": False, **options}), evaluation=True, name="judging")
        stream.begin(0)
        return stream


class SposTrainer(SinglePathTrainer):
    """Trains a random path through the space in every step, then ranks its networks by an evolutionary search (SPOS).

    The search judges each network with the weights they share, on the validation data, after its batch norms were given
    statistics of their own on some batches of the training data. It is a last epoch of the run, in which every step
    judges one network, so it is saved and resumed like the rest.

    Args:
        args: As for every one-shot trainer: model, loss, metrics, optimizer, num_epochs, dataset. `metrics` is what
            networks are ranked by, the larger the better; without it the loss, negated.
        population: Networks in a generation of the search.
        generations: How many generations there are.
        parents: How many of the best have children.
        mutation_probability: How likely each decision of a mutant is drawn again.
        recalibration_batches: How many batches the statistics of batch norms are taken from.
        accept: Says which architectures are trained and judged, such as those whose cost is below a limit.
        objective: Which of several metrics networks are ranked by; by default the first.
        kwargs: As for every one-shot trainer.
    """

    core: SposCore
    core_type = SposCore

    def __init__(
        self,
        *args: Any,
        population: int = 50,
        generations: int = 20,
        parents: int = 10,
        mutation_probability: float = 0.1,
        recalibration_batches: int = 20,
        accept: Callable[[Architecture], bool] | None = None,
        objective: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.penalties:
            raise ConfigError("SposTrainer has no gradients that a penalty could be a part of; use accept= for a limit")
        if self._evaluates:
            raise ConfigError("SposTrainer ranks networks by a function; pass metrics=f(outputs, targets)")
        core = self.core
        core.training_epochs, core.accept, core.objective = self.num_epochs, accept, objective
        core.recalibration_batches = recalibration_batches
        core.evolution = Evolution(
            self._space,
            population=population,
            generations=generations,
            parents=parents,
            mutation_probability=mutation_probability,
            accept=accept,
        )

    def _epochs(self) -> int:
        return self.num_epochs + 1

    def _has_found(self) -> bool:
        return self.core.progress.epoch >= self._epochs() and bool(self.core.evolution.ranked())

    def _refuse_export(self) -> None:
        judged = len(self.core.evolution.ranked())
        raise ConfigError(
            f"SposTrainer has judged {judged} networks and not come to the end of its search; call fit() first"
        )

    def _ranked(self, most: int) -> list[Found]:
        judged = self.core.evolution.ranked()
        return [Found(dict(architecture), score) for architecture, score in judged[:most]]

    def _finished(self) -> None:
        ranked = self.core.evolution.ranked()
        if ranked:
            self.core.choose(ranked[0][0])
