"""A run in which one rank gets stuck, so that the other waits for it in vain."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.parallel.programs.models import classifier, per_device, samples, trainer_of
from treadle import Trainer, TrainerCallback


class Stick(TrainerCallback):
    """Does nothing for long, on the last rank only, at the third update."""

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if trainer.processes.rank == trainer.processes.size - 1 and trainer.progress.step == 2:
            # To die when the launcher asks for it, which it does when all is written, and not when it kills, half a
            # minute later.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(60)


def main() -> None:
    """Train, and say so if it ever ends."""
    folder = Path(sys.argv[1]) / "hanging" / "run"
    trainer = trainer_of(classifier(), callbacks=(Stick,), run_dir=folder, timeout=4)
    trainer.train(samples(48), num_epochs=2, per_device_batch_size=per_device(trainer))
    print("the run ended as if nothing had happened")


if __name__ == "__main__":
    main()
