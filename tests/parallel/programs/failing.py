"""A run in which one rank fails in an ordinary way, while the others wait for its gradients."""

from typing import Any

from tests.parallel.programs.models import classifier, per_device, samples, trainer_of
from treadle import Trainer, TrainerCallback


class Fail(TrainerCallback):
    """Fails on the last rank only, at the third update."""

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if trainer.processes.rank == trainer.processes.size - 1 and trainer.progress.step == 2:
            raise ValueError("this rank has had enough")


def main() -> None:
    """Train, and say so if it ever ends."""
    trainer = trainer_of(classifier(), callbacks=(Fail,))
    trainer.train(samples(48), num_epochs=2, per_device_batch_size=per_device(trainer))
    print("the run ended as if nothing had happened")


if __name__ == "__main__":
    main()
