"""Trains from a config, with a hook and a step of one's own; started again with --resume, it goes on.

python examples/engine/train_net.py --config-file examples/engine/rings.py train.train_iter=400 optim.lr=3e-3
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.config import LazyConfig
from treadle.engine import (
    DefaultTrainer,
    EagerTrainer,
    HookBase,
    default_argument_parser,
    default_setup,
    dist,
)

logger = logging.getLogger("treadle.example")


class SlowestBatch(HookBase):
    """Says at the end which iteration waited longest for its data."""

    def before_train(self) -> None:
        self.slowest = (0.0, 0)

    def after_step(self) -> None:
        self.slowest = max(self.slowest, (self.trainer.core.data_time, self.trainer.iter))

    def after_train(self) -> None:
        logger.info("iteration %d waited longest for data: %.1f ms", self.slowest[1], 1000 * self.slowest[0])


class LastOutput(EagerTrainer):
    """Keeps what the model returned last; the rest of the step is its own as well."""

    previous_output: Any = None

    def run_step(self, get_batch: Callable[..., Any]) -> None:  # type: ignore[override]
        losses = self.model(**get_batch(next(self._data_loader_iter)))
        self.previous_output = losses
        (sum(losses.values()) / self.grad_acc_steps).backward()
        self.write_metrics(losses, data_time=0.0)
        if (self.iter + 1) % self.grad_acc_steps == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Trainer(DefaultTrainer):
    """A trainer from a config with both."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        accumulation = self.cfg.train.num_accumulation_steps
        self._trainer = LastOutput(self.model, self.train_loader, self.optimizer, accumulation)

    def build_hooks(self) -> list[HookBase | None]:
        return [SlowestBatch(), *super().build_hooks()]


def main(args: Any) -> Any:
    """Train, or with --eval-only evaluate the newest checkpoint, and return the results."""
    cfg = LazyConfig.load(args.config_file or Path(__file__).with_name("rings.py"))
    cfg = LazyConfig.apply_overrides(cfg, args.opts)
    default_setup(cfg, args)
    trainer = Trainer(cfg)
    if args.eval_only:
        return trainer.test(trainer.cfg, trainer.test_loader, trainer.model)
    return trainer.train()


if __name__ == "__main__":
    results = main(default_argument_parser().parse_args())
    if dist.is_main_process():
        print(f"accuracy on held-out points: {results['Acc@1']:.1f}%" if results else "nothing to do")
