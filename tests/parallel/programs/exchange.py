"""Optimizers that the trainer was not given, or that step where it does not know of it, on one process and on two."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from tests.parallel.programs.models import classifier, flat, outcome, per_device, samples, sgd, trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle import Phase, Trainer, TrainerCallback
from treadle.errors import ConfigError
from treadle.parallel import local_updates

program = Program("exchange")
STRANGER: list[Optimizer] = []


def critic(seed: int = 11) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def judged(critic: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss that a critic learns from the outputs of the model."""
    return (critic(outputs.detach()).squeeze(1) - targets.double()).square().mean()


def step_on(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class WithCritic(Trainer):
    """Keeps a network of its own beside the model, and the optimizer that trains it."""

    def __init__(self, *args: Any, seed_of_critic: int = 11, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.critic = critic(seed_of_critic)
        self.opt_critic = sgd(self.critic)

    def learn_critic(self, batch: Any) -> None:
        inputs, targets = batch
        step_on(self.opt_critic, judged(self.critic, self.model(inputs), targets))


class InLoop(WithCritic):
    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            self.learn_critic(batch)
            output = self.calculate_train_batch_loss(batch)
            self._update_loss_tracker(output["loss"], output["batch_size"])
            step_on(self.optimizer, output["loss"])


class InVerb(WithCritic):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.learn_critic(batch)
        return super().calculate_train_batch_loss(batch)


class InList(WithCritic):
    """Has the optimizer in a dict."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.others = {"critic": self.opt_critic}
        del self.opt_critic

    def optimizer_step(self) -> None:
        super().optimizer_step()
        inputs, targets = samples(48).tensors
        half = len(inputs) // self.processes.size
        own = slice(half * self.processes.rank, half * (self.processes.rank + 1))
        step_on(self.others["critic"], judged(self.critic, self.model(inputs[own]), targets[own]))


class OfTheModel(Trainer):
    """Trains the last layer once more, by an optimizer that nobody keeps."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        step_on(torch.optim.SGD(self.model[2].parameters(), lr=0.05), super().calculate_train_batch_loss(batch)["loss"])
        self.optimizer.zero_grad()
        return super().calculate_train_batch_loss(batch)


class OwnUpdate(Trainer):
    """Makes the update by hand, with the optimizer that the trainer was given."""

    def update(self, phase: Phase, window: list[Any]) -> None:
        for inputs, targets in window:
            loss = self.loss_func(self.model(inputs), targets)
            self._update_loss_tracker(loss, len(targets))
            (loss / len(window)).backward()
            self.this_run.updater.samples += len(targets)
        self.optimizer.step()
        self.optimizer.zero_grad()


class OwnStep(Trainer):
    """Steps by hand where the trainer has made the gradient."""

    def optimizer_step(self) -> None:
        self.optimizer.step()


class Closing(Trainer):
    """Gives the optimizer a function that makes the gradient."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:

            def closure(batch: Any = batch) -> Tensor:
                self.optimizer.zero_grad()
                loss: Tensor = self.calculate_train_batch_loss(batch)["loss"]
                loss.backward()
                return loss

            self.optimizer.step(closure)


class Probing(TrainerCallback):
    """Learns something beside the run from every batch."""

    def __init__(self) -> None:
        self.critic = critic()
        self.optimizer = sgd(self.critic)

    def on_train_step_end(self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        step_on(self.optimizer, judged(self.critic, batch_output["model_outputs"], batch[1]))


def train(kind: type[Trainer], *, beside: Callable[[Trainer], nn.Module] | None = None, **kwargs: Any) -> Report:
    """Train, and report the weights of the model together with those of what learnt beside it."""
    model = classifier()
    trainer = trainer_of(model, kind, **kwargs)
    result = trainer.train(samples(48), num_epochs=2, per_device_batch_size=per_device(trainer))
    report = outcome(trainer, result)
    if beside is not None:
        report["weights"] = torch.cat([report["weights"], flat(beside(trainer))])
    return report


for name, kind in {"in_a_loop": InLoop, "in_a_verb": InVerb, "in_a_dict": InList}.items():
    program.add(name, lambda kind=kind: train(kind, beside=lambda trainer: trainer.critic))  # type: ignore[misc]
for name, kind in {"of_the_model": OfTheModel, "own_update": OwnUpdate, "own_step": OwnStep}.items():
    program.add(name, lambda kind=kind: train(kind))  # type: ignore[misc]


@program.scenario
def in_a_callback() -> Report:
    probing = Probing()
    return train(Trainer, callbacks=(probing,), beside=lambda trainer: probing.critic)


@program.scenario
def closure() -> Report:
    model = classifier()
    optimizer = LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    trainer = trainer_of(model, Closing, optimizer=optimizer, metrics=None)
    trainer.train(samples(48), num_epochs=1, per_device_batch_size=per_device(trainer))
    return {"weights": flat(model)}


class Strange(Trainer):
    """Steps an optimizer that is nobody's."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        net = critic()
        STRANGER[:] = [torch.optim.Adam(net.parameters())]
        step_on(STRANGER[0], judged(net, self.model(batch[0]), batch[1]))
        return super().calculate_train_batch_loss(batch)


def refused(make: Callable[[], Any]) -> Report:
    try:
        make()
    except ConfigError as error:
        return {"message": str(error)}
    return {"message": ""}


@program.scenario
def stranger() -> Report:
    return refused(lambda: train(Strange))


@program.scenario
def different_weights() -> Report:
    rank = trainer_of(classifier()).processes.rank
    return refused(lambda: train(InVerb, seed_of_critic=rank))


class Apart(Trainer):
    """Adapts a copy of the model on one process only, as often as it likes."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        if self.processes.is_main:
            copy = classifier()
            with local_updates():
                step_on(torch.optim.SGD(copy.parameters(), lr=0.1), self.loss_func(copy(batch[0]), batch[1]))
        return super().calculate_train_batch_loss(batch)


@program.scenario
def apart() -> Report:
    return train(Apart)


class AtEvaluation(TrainerCallback):
    """Fits a probe on the first process only, after an evaluation."""

    def __init__(self) -> None:
        self.fitted = 0

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if trainer.processes.is_main:
            probe = nn.Linear(4, 3).double()
            with torch.enable_grad():
                inputs, targets = samples(12).tensors
                step_on(torch.optim.SGD(probe.parameters(), lr=0.1), trainer.loss_func(probe(inputs), targets))
            self.fitted += 1


@program.scenario
def probe_after_an_evaluation() -> Report:
    probe = AtEvaluation()
    trainer = trainer_of(classifier(), callbacks=(probe,))
    data = {"eval_dataset": samples(12), "eval_every": "2 steps"}
    trainer.train(samples(48), num_epochs=1, per_device_batch_size=per_device(trainer), **data)
    return {"fitted": probe.fitted, "steps": trainer.progress.step}


def halves() -> tuple[Tensor, Tensor]:
    """Return other samples on each process."""
    inputs, targets = samples(48).tensors
    rank = trainer_of(classifier()).processes.rank
    return inputs[24 * rank : 24 * (rank + 1)], targets[24 * rank : 24 * (rank + 1)]


class AtRunStart(WithCritic):
    def training_run_start(self) -> None:
        self.learn_critic(halves())


class AfterAnEpoch(WithCritic):
    def training_run_epoch_end(self) -> None:
        self.learn_critic(halves())


class AtRunEnd(WithCritic):
    def training_run_end(self) -> None:
        self.learn_critic(halves())


class OwnRun(WithCritic):
    def _run_training(self) -> None:
        self._run_train_epoch(self._train_dataloader)
        for batch in self._train_dataloader:
            self.learn_critic(batch)


class InAnEvaluation(WithCritic):
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        with torch.enable_grad():
            self.learn_critic(batch)
        return super().calculate_eval_batch_loss(batch)


class OfTheModelAtRunEnd(Trainer):
    """Trains the last layer once more when the run is over, by an optimizer that nobody keeps."""

    def training_run_end(self) -> None:
        inputs, targets = halves()
        loss = self.loss_func(self.model(inputs), targets)
        step_on(torch.optim.SGD(self.model[2].parameters(), lr=0.05), loss)


class Between(Probing):
    """Learns from a callback, between two epochs."""

    on_train_step_end = TrainerCallback.on_train_step_end

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        inputs, targets = halves()
        step_on(self.optimizer, judged(self.critic, trainer.model(inputs), targets))


def with_evaluations(kind: type[Trainer], *, callbacks: Any = (), **settings: Any) -> Trainer:
    trainer = trainer_of(classifier(), kind, callbacks=callbacks)
    trainer.train(
        samples(48),
        num_epochs=1,
        per_device_batch_size=per_device(trainer),
        eval_dataset=samples(12),
        **{"eval_every": "1 epoch", **settings},
    )
    return trainer


OUTSIDE = {
    "at_run_start": AtRunStart,
    "after_an_epoch": AfterAnEpoch,
    "at_run_end": AtRunEnd,
    "own_run": OwnRun,
    "of_the_model_at_run_end": OfTheModelAtRunEnd,
    "in_an_evaluation": InAnEvaluation,
}
for name, kind in OUTSIDE.items():
    program.add(name, lambda kind=kind: refused(lambda: with_evaluations(kind)))  # type: ignore[misc]


@program.scenario
def in_an_evaluation_by_steps() -> Report:
    return refused(lambda: with_evaluations(InAnEvaluation, eval_every="2 steps"))


@program.scenario
def in_evaluate() -> Report:
    return refused(lambda: trainer_of(classifier(), InAnEvaluation).evaluate(samples(12), per_device_batch_size=2))


@program.scenario
def in_a_callback_between_epochs() -> Report:
    return refused(lambda: with_evaluations(Trainer, callbacks=(Between(),)))


class ProbedInEvaluations(Trainer):
    """Makes and keeps a probe for each evaluation, and fits it on the first process only."""

    fitted = 0

    def eval_epoch_start(self) -> None:
        super().eval_epoch_start()
        self.probe = nn.Linear(4, 3).double()
        self.optimizer_of_probe = sgd(self.probe)

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        if self.processes.is_main:
            with torch.enable_grad():
                step_on(self.optimizer_of_probe, self.loss_func(self.probe(batch[0]), batch[1]))
            self.fitted += 1
        return super().calculate_eval_batch_loss(batch)


@program.scenario
def probe_of_each_evaluation() -> Report:
    trainers = [with_evaluations(ProbedInEvaluations, eval_every=every) for every in ("1 epoch", "2 steps")]
    return {"fitted": [trainer.fitted > 0 for trainer in trainers]}


class ProbedAtTheEnd(Trainer):
    """Fits a probe on the first process only when the run is over, and one that it keeps, within `local_updates`."""

    fitted = 0

    def training_run_end(self) -> None:
        self.probe = nn.Linear(4, 3).double()
        self.optimizer_of_probe = sgd(self.probe)
        if self.processes.is_main:
            inputs, targets = samples(12).tensors
            beside = nn.Linear(4, 3).double()
            step_on(sgd(beside), self.loss_func(beside(inputs), targets))
            with local_updates():
                step_on(self.optimizer_of_probe, self.loss_func(self.probe(inputs), targets))
            self.fitted += 1


@program.scenario
def probe_at_the_end() -> Report:
    return {"fitted": with_evaluations(ProbedAtTheEnd).fitted}
