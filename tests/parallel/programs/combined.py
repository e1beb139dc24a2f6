"""Plans that combine stages, divided layers and sharded weights, in float64; each rank computes what one process would.

Models of transformers say themselves how they are divided; those are trained where transformers is installed.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate

from examples.language_model.gpt import GPT
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer, TrainerCallback
from treadle.callbacks import ModelEmaCallback
from treadle.checkpoint import read_file
from treadle.errors import ConfigError
from treadle.optim import muon_groups
from treadle.parallel import Plan
from treadle.parallel.state_dict import gather_state

program = Program("combined")

BATCH, CLIP, STEPS = 8, 0.05, 5
VOCABULARY, LENGTH = 40, 12
PLANS = {
    "tensor + pipeline": Plan(tensor=2, pipeline=2),
    "FSDP2 + pipeline": Plan(shard=2, pipeline=2),
    "hybrid": Plan(data=2, shard=2),
    "FSDP2 + tensor": Plan(shard=2, tensor=2),
    "DDP": Plan(),
}


class Rows(Dataset[Any]):
    """Rows of tokens, or of what a function makes of a number."""

    def __init__(self, make: Callable[[int], Any], count: int = 3 * BATCH + 4) -> None:
        self.rows = [make(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def pair(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    tokens, targets = torch.randint(12, (2, 6), generator=generator)
    return tokens, targets


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return GPT(12, context=6, layers=3, heads=2, width=16).double()


def loss_of_scores(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten())


def sgd(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)]


def with_muon(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices, others = muon_groups(model)
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.SGD(others, lr=0.3, momentum=0.9)]


# One process ----------------------------------------------------------------------------------------------------


def by_hand(model: nn.Module, rows: Rows, loss: Callable[[Any], Tensor], optimizers: Sequence[Any]) -> Report:
    """Train as a loop written by hand does, on whole batches in the order of the rows, on this process alone."""
    losses, norms = [], []
    starts = [begin for _ in range(2) for begin in range(0, len(rows), BATCH)][:STEPS]
    average = {name: value.clone() for name, value in model.state_dict().items()}
    for begin in starts:
        value = loss(default_collate([rows[place] for place in range(begin, min(begin + BATCH, len(rows)))]))
        value.backward()  # type: ignore[no-untyped-call]
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        losses.append(float(value.detach()))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for name, value in model.state_dict().items():
            average[name] = average[name].lerp(value, 0.2) if value.is_floating_point() else value
    with torch.no_grad():
        evaluated = float(loss(default_collate([rows[place] for place in range(8)])))
    return {
        "losses": losses,
        "norms": norms,
        "weights": dict(model.state_dict()),
        "average": average,
        "evaluated": evaluated,
    }


# Plans ----------------------------------------------------------------------------------------------------------


class Noted(TrainerCallback):
    """Notes the norm of each gradient, and where the updates began."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.began_at: list[int] = []

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self.began_at.append(trainer.progress.step)

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        assert trainer.gradient_norm is not None
        self.norms.append(float(trainer.gradient_norm))


def trained(
    model: nn.Module,
    rows: Rows,
    loss: Any,
    plan: Plan,
    optimizers: Any,
    *,
    parts: int = 2,
    also: tuple[TrainerCallback, ...] = (),
    **settings: Any,
) -> tuple[Trainer, Noted]:
    noted = Noted()
    steps, resume = settings.pop("max_steps", STEPS), settings.pop("resume", None)
    trainer = Trainer(model, loss, optimizers(model), callbacks=(noted, *also), parallel=plan, **settings)
    size = BATCH // parts // trainer.parallel.data_size
    options: dict[str, Any] = {"clip_norm": CLIP, "log_every": 1, "train_dataloader_kwargs": {"shuffle": False}}
    if "run_dir" in settings:
        options |= {"save_every": 1, "resume": resume}
    trainer.train(rows, per_device_batch_size=size, gradient_accumulation_steps=parts, max_steps=steps, **options)
    return trainer, noted


def whole_weights(trainer: Trainer, name: str) -> dict[str, Tensor]:
    path = program.folder / f"{name.replace(' ', '_')}.pt"
    trainer.save_checkpoint(path, save_optimizer=False)
    found: dict[str, Tensor] = read_file(path)["model_state_dict"]
    trainer.processes.barrier()
    return found


def apart(own: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return how far weights are from each other at most."""
    assert own.keys() == other.keys(), sorted(own.keys() ^ other.keys())
    return max(float((value - other[name]).abs().max()) for name, value in own.items() if value.is_floating_point())


def compared(trainer: Trainer, noted: Noted, one: Report, name: str) -> Report:
    own_losses = [float(value) for value in trainer.storage.series("train_loss").values]
    return {
        "losses": max(abs(own - other) for own, other in zip(own_losses, one["losses"], strict=True)),
        "norms": max(abs(own - other) for own, other in zip(noted.norms, one["norms"], strict=True)),
        "weights": apart(whole_weights(trainer, name), one["weights"]),
        "steps": trainer.progress.step,
    }


def gpt_under(name: str, optimizers: Any) -> Report:
    model, rows = gpt(), Rows(pair)
    one = by_hand(model, rows, lambda batch: loss_of_scores(model(batch[0]), batch[1]), optimizers(model))
    folder = program.folder / "runs" / f"{name}_{optimizers.__name__}".replace(" ", "_")
    plan = PLANS[name]
    average = ModelEmaCallback(decay=0.8, evaluate_during_training=False, save_path=folder.parent / "ema.pt")
    trainer, noted = trained(gpt(), rows, loss_of_scores, plan, optimizers, also=(average,))
    found = compared(trainer, noted, one, name)
    assert average.ema_model is not None
    kept = gather_state(average.ema_model.module)
    found["average"] = apart(kept, one["average"]) if name.endswith("pipeline") else 0.0
    evaluated = trainer.evaluate(Rows(pair, 8), per_device_batch_size=2)["evaluation_loss"]
    found["evaluated"] = abs(float(evaluated) - one["evaluated"])
    # Stopped within the first epoch, which has four windows, and resumed by another trainer.
    trained(gpt(), rows, loss_of_scores, plan, optimizers, run_dir=folder, max_steps=2)
    again, resumed = trained(gpt(), rows, loss_of_scores, plan, optimizers, run_dir=folder, resume="auto")
    same = apart(whole_weights(again, f"{name} again"), whole_weights(trainer, f"{name} once more"))
    return found | {"began_at": resumed.began_at[0], "updates": len(resumed.norms), "again": same}


for plan in ("tensor + pipeline", "FSDP2 + pipeline"):
    program.add(f"GPT, {plan}", partial(gpt_under, plan, sgd))
for plan in ("FSDP2 + tensor", "hybrid", "DDP"):
    program.add(f"Muon, {plan}", partial(gpt_under, plan, with_muon))


# Models of transformers -----------------------------------------------------------------------------------------


def pretrained_under(kind: str, name: str, **settings: Any) -> Report:
    from tests.hf.models import build, sample

    plan = PLANS[name]
    model, rows = build(kind, torch.float64), Rows(partial(sample, kind))
    one = by_hand(model, rows, lambda batch: model(**batch).loss, sgd(model))
    trainer, noted = trained(build(kind, torch.float64), rows, None, plan, sgd, **settings)
    found = compared(trainer, noted, one, f"{kind} {name}")
    if trainer.parallel.data_size > 1:
        # What is logged is a mean over the samples of all shares, and a loss over whole batches is one over labels.
        found.pop("losses")
    return found


def fused_under() -> Report:
    from treadle.hf import FusedHead

    refused = ""
    try:
        trained(nn.Linear(2, 1), Rows(pair), None, PLANS["FSDP2 + tensor"], sgd, also=(FusedHead(),))
    except ConfigError as error:
        refused = str(error)
    return pretrained_under("gpt2", "hybrid", also=(FusedHead(),)) | {"refused": refused}


PRETRAINED = {
    "llama with two key heads": ("FSDP2 + tensor",),
    "llama with a tied head": ("tensor + pipeline",),
    "qwen3": ("tensor + pipeline",),
    "gemma": ("FSDP2 + pipeline",),
    "gpt2": ("FSDP2 + pipeline",),
    "bert": ("tensor + pipeline",),
    "t5": ("hybrid",),
    "vit": ("tensor + pipeline", "FSDP2 + pipeline"),
}
if importlib.util.find_spec("transformers"):
    for kind, plans in PRETRAINED.items():
        for plan in plans:
            program.add(f"{kind}, {plan}", partial(pretrained_under, kind, plan))
    program.add("fused head, hybrid", fused_under)


if __name__ == "__main__":
    program.run(Path(sys.argv[1]))
