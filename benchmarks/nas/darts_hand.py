"""The supernet and the loop of DARTS as one writes them by hand: no graph, no fusion, a sum of products per edge."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle.nas.zoo.darts import NODES, OPERATIONS, STEM_WIDTH, CellInputs, make_operation

Batch = tuple[Tensor, Tensor]


class HandCell(nn.Module):
    """A cell in which every edge sums all its operations by their weights."""

    def __init__(self, before: int, last: int, channels: int, halved: bool, halves: bool) -> None:
        super().__init__()
        self.halves = halves
        self.inputs = CellInputs(before, last, channels, halved, affine=False)
        self.edges = nn.ModuleList(
            nn.ModuleList(
                make_operation(name, channels, 2 if halves and place < 2 else 1, affine=False) for name in OPERATIONS
            )
            for node in range(2, 2 + NODES)
            for place in range(node)
        )

    def forward(self, before: Tensor, last: Tensor, weights: Tensor) -> Tensor:
        """Return the concatenated nodes."""
        states = self.inputs([before, last])
        edge = 0
        for _ in range(NODES):
            total: Any = 0
            for state in states:
                operations: Any = self.edges[edge]
                total = total + sum(weight * one(state) for weight, one in zip(weights[edge], operations, strict=True))
                edge += 1
            states.append(total)
        return torch.cat(states[2:], 1)


class HandSupernet(nn.Module):
    """The network of DARTS with a weight for every operation of every edge."""

    def __init__(self, width: int, num_cells: int, num_labels: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        stem = STEM_WIDTH * width
        self.stem = nn.Sequential(nn.Conv2d(in_channels, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem))
        self.cells = nn.ModuleList()
        before, last, halved, channels = stem, stem, False, width
        for number in range(num_cells):
            halves = number in (num_cells // 3, 2 * num_cells // 3)
            channels *= 2 if halves else 1
            self.cells.append(HandCell(before, last, channels, halved, halves))
            before, last, halved = last, NODES * channels, halves
        self.classifier = nn.Linear(last, num_labels)
        edges = sum(range(2, 2 + NODES))
        self.normal = nn.Parameter(1e-3 * torch.randn(edges, len(OPERATIONS)))
        self.reduce = nn.Parameter(1e-3 * torch.randn(edges, len(OPERATIONS)))

    def weights(self) -> list[nn.Parameter]:
        """Return everything but the weights of operations."""
        own = {id(self.normal), id(self.reduce)}
        return [parameter for parameter in self.parameters() if id(parameter) not in own]

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each class."""
        before = last = self.stem(images)
        normal, reduce = self.normal.softmax(-1), self.reduce.softmax(-1)
        for cell in self.cells:
            before, last = last, cell(before, last, reduce if cell.halves else normal)
        scores: Tensor = self.classifier(F.adaptive_avg_pool2d(last, 1).flatten(1))
        return scores


def make_step(model: HandSupernet, *, half: bool) -> Callable[[Batch, Batch], None]:
    """Return one step of the search: the architecture on the second batch, then the weights on the first."""
    weights = model.weights()
    optimizer = torch.optim.SGD(weights, lr=0.025, momentum=0.9, weight_decay=3e-4)
    architect = torch.optim.Adam([model.normal, model.reduce], lr=3e-4, betas=(0.5, 0.999), weight_decay=1e-3)
    device = next(model.parameters()).device.type

    def loss_of(batch: Batch) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=half):
            outputs = model(batch[0])
        return F.cross_entropy(outputs.float() if half else outputs, batch[1])

    def step(train: Batch, validation: Batch) -> None:
        architect.zero_grad()
        loss_of(validation).backward()
        architect.step()
        optimizer.zero_grad()
        loss_of(train).backward()
        nn.utils.clip_grad_norm_(weights, 5.0)
        optimizer.step()

    return step
