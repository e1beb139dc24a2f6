"""A program in the manner of detectron2's `lazyconfig_train_net.py`: its lines are those, but for imports and keys."""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.parts import Points
from treadle.config import ConfigDict, LazyCall, LazyConfig, get_config, instantiate
from treadle.engine import (
    AMPTrainer,
    Checkpointer,
    DatasetEvaluator,
    SimpleTrainer,
    create_ddp_model,
    default_argument_parser,
    default_setup,
    default_writers,
    hooks,
    inference_on_dataset,
    launch,
)
from treadle.engine import dist as comm
from treadle.optim.param_groups import get_default_optimizer_params

logger = logging.getLogger("treadle")


class Detector(nn.Module):
    """Takes a batch, and returns its losses by names that do not say so, or what it found."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.Tanh())
        self.head = nn.Linear(width, 2)

    def forward(self, batch: dict[str, Tensor]) -> Any:
        scores = self.head(self.body(batch["inputs"]))
        if not self.training:
            return scores.argmax(dim=1)
        return {
            "classes": nn.functional.cross_entropy(scores, batch["labels"]),
            "weights": self.head.weight.square().sum() * 0.01,
        }


class Share(DatasetEvaluator):
    """The share of labels that were found."""

    def reset(self) -> None:
        self.right = self.seen = 0

    def process(self, inputs: Any, outputs: Any) -> None:
        self.right += int((inputs["labels"] == outputs).sum())
        self.seen += len(outputs)

    def evaluate(self) -> dict[str, float]:
        return {"share": self.right / self.seen}


def decay(where: float) -> float:
    """Return the factor of the rate for how far the run is."""
    return 1.0 if where < 0.5 else 0.1


def points(count: int, seed: int, shuffle: bool) -> Any:
    return torch.utils.data.DataLoader(Points(count, seed), batch_size=8, shuffle=shuffle)


def make_config(output_dir: str) -> ConfigDict:
    train = get_config("common/train.py").train
    train.update(output_dir=output_dir, train_iter=20, log_period=5, dist={"device_type": "cpu"})
    train.update(checkpointer={"period": 5, "max_to_keep": 3}, evaluation={"eval_period": 10})
    return ConfigDict(
        {
            "model": LazyCall(Detector)(width=8),
            "optim": LazyCall(torch.optim.SGD)(
                params=LazyCall(get_default_optimizer_params)(model=None), lr=0.5, momentum=0.9
            ),
            "multiplier": decay,
            "dataloader": {
                "train": LazyCall(points)(count=64, seed=0, shuffle=True),
                "test": LazyCall(points)(count=32, seed=1, shuffle=False),
            },
            "evaluator": LazyCall(Share)(),
            "train": train,
        }
    )


def do_test(cfg: Any, model: nn.Module) -> Any:
    return inference_on_dataset(model, instantiate(cfg.dataloader.test), instantiate(cfg.evaluator))


def do_train(args: Any, cfg: Any) -> Any:
    model = instantiate(cfg.model)
    logger.info("Model:\n%s", model)
    cfg.optim.params.model = model
    optim = instantiate(cfg.optim)
    train_loader = instantiate(cfg.dataloader.train)
    model = create_ddp_model(model, broadcast_buffers=False)
    trainer = (AMPTrainer if cfg.train.amp.enabled else SimpleTrainer)(model, train_loader, optim)
    checkpointer = Checkpointer(model, cfg.train.output_dir, optimizer=optim, trainer=trainer)
    writers = default_writers(cfg.train.output_dir, cfg.train.train_iter)
    trainer.register_hooks(
        [
            hooks.IterationTimer(),
            hooks.LRScheduler(scheduler=cfg.multiplier),
            hooks.PeriodicCheckpointer(checkpointer, cfg.train.checkpointer.period, max_to_keep=3),
            hooks.EvalHook(cfg.train.evaluation.eval_period, lambda: do_test(cfg, model)),
            hooks.PeriodicWriter(writers, period=cfg.train.log_period) if comm.is_main_process() else None,
        ]
    )
    checkpointer.resume_or_load(cfg.train.load_weight, resume=args.resume)
    start_iter = trainer.iter + 1 if args.resume and checkpointer.has_checkpoint() else 0
    trainer.train(start_iter, cfg.train.train_iter)
    return trainer


def main(args: Any) -> Any:
    cfg = LazyConfig.apply_overrides(make_config(args.config_file), args.opts)
    default_setup(cfg, args)
    torch.manual_seed(cfg.train.seed)
    return do_train(args, cfg)


if __name__ == "__main__":
    args = default_argument_parser().parse_args()
    launch(
        main,
        args.num_gpus,
        num_machines=args.num_machines,
        machine_rank=args.machine_rank,
        dist_url=args.dist_url,
        args=(args,),
    )
