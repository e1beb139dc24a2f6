"""Whether `DartsTrainer` does what the loop by hand does: the same weights, the same batches, the same steps."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.execution.session import Findings, Options
from benchmarks.nas.darts_hand import HandSupernet, make_step
from treadle import nas
from treadle.data import InMemoryDataset
from treadle.nas.zoo import DartsSpace

EPOCHS = 3
ARCHITECTURE_TOLERANCE, WEIGHT_TOLERANCE = 1e-12, 1e-11
"""How far apart the weights of candidates may be in the mean, and the norm of all other weights, relative to itself.

Both calculate in double precision. Adam makes steps of equal length from gradients of any: where one is next to zero,
rounding decides where it goes, and in fp32 that is a good part of what so few steps move.
"""

Pictures = tuple[Tensor, Tensor]


def start(width: int, cells: int, seed: int, device: torch.device) -> tuple[HandSupernet, DartsSpace]:
    """Return the supernet by hand and ours, with the same weights."""
    torch.manual_seed(seed)
    by_hand, space = HandSupernet(width, cells).to(device), DartsSpace(width, cells, in_channels=1, affine=False)
    space.to(device)
    with torch.no_grad():
        for own, other in zip(space.parameters(), by_hand.weights(), strict=True):
            own.copy_(other)
    return by_hand, space


def by_hand(model: HandSupernet, train: Pictures, validation: Pictures, batch: int) -> None:
    """Search by hand, over the batches in order."""
    step = make_step(model, half=False)
    parts = [[part.split(batch) for part in data] for data in (train, validation)]
    for _ in range(EPOCHS):
        for images, labels, other_images, other_labels in zip(*parts[0], *parts[1], strict=True):
            step((images, labels), (other_images, other_labels))


def by_treadle(
    space: DartsSpace, first: Tensor, data: tuple[Pictures, Pictures], batch: int, options: Options, execution: str
) -> Any:
    """Search by `DartsTrainer` over the same batches, from the same weights of candidates; return the trainer."""
    train, validation = data
    trainer = nas.DartsTrainer(
        space,
        F.cross_entropy,
        None,
        None,
        EPOCHS,
        InMemoryDataset(*train),
        validation_dataset=InMemoryDataset(*validation),
        batch_size=batch,
        seed=options.seed,
        device=options.device,
        execution=execution,
        matmul_precision="highest",
        convolution_precision="highest",
        callbacks=(),
        loader_options={"shuffle": False},
    )
    with torch.no_grad():
        trainer.supernet.weights.alpha.copy_(first)
    trainer.fit(log_every=1_000_000)
    return trainer


def check_parity(findings: Findings, pictures: Pictures, width: int, cells: int) -> None:
    """Compare where both end, and keep how far apart that is; further than rounding explains is said."""
    options = findings.options
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    batch, count = (4, 8) if options.smoke else (64, 256)
    images, labels = (part[: 2 * count].to(options.device) for part in pictures)
    images = images.double()
    data = (images[:count], labels[:count]), (images[count:], labels[count:])
    torch.set_default_dtype(torch.float64)
    try:
        compare(findings, (width, cells), data, batch)
    finally:
        torch.set_default_dtype(torch.float32)


def compare(findings: Findings, size: tuple[int, int], data: tuple[Pictures, Pictures], batch: int) -> None:
    """Search by hand and by Treadle, and keep how far apart they end."""
    options = findings.options
    width, cells = size
    hand, _ = start(width, cells, options.seed, options.device)
    first = torch.cat([hand.normal, hand.reduce]).detach().clone()
    by_hand(hand, *data, batch)
    alpha = torch.cat([hand.normal, hand.reduce]).detach()
    findings.data["parity"] = {}
    for execution in ("eager", "graph") if options.captures else ("eager",):
        _, space = start(width, cells, options.seed, options.device)
        trainer = by_treadle(space, first, data, batch, options, execution)
        own = trainer.supernet.weights.alpha.detach()
        pairs = [(one.detach(), other.detach()) for one, other in zip(space.parameters(), hand.weights(), strict=True)]
        apart = torch.stack([(one - other).norm() for one, other in pairs]).norm()
        whole = torch.stack([other.norm() for _, other in pairs]).norm()
        found = {
            "steps": trainer.core.progress.step // 2,
            "moved": float((alpha - first).abs().mean()),
            "architecture": float((own - alpha).abs().mean()),
            "weights": float(apart / whole),
        }
        found["agree"] = found["architecture"] < ARCHITECTURE_TOLERANCE and found["weights"] < WEIGHT_TOLERANCE
        findings.data["parity"][execution] = found
        findings.say(f"parity of {execution} with the loop by hand: {found}")
        findings.save()
