"""What has to agree before recommenders are timed on a GPU: products with the graph, and recorded steps."""

import argparse
import tempfile
from typing import Any

import torch
from torch import Tensor

from benchmarks.execution.session import Findings
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.histories import csr_matrix

ALLOWED = {"product": 1e-6, "powers": 1e-6, "gradient": 1e-6, "bf16 messages": 5e-3, "steps": 1e-6}
"""How far two ways may be apart, relative to the size of what they find."""
STEPWISE = ("BPR", "LightGCN")


def check_products(graph: Graph, findings: Findings, device: torch.device) -> None:
    """Compare products with the graph, by whatever is quickest on the device, with torch's own in float64."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(graph.n_nodes, 64, generator=generator).to(device)
    slope = torch.randn(graph.n_nodes, 64, generator=generator).to(device)
    graph = graph.to(device)
    matrix = csr_matrix(graph.starts, graph.neighbours, graph.weights.double(), (graph.n_nodes, graph.n_nodes))
    exact = features.double()
    layers = [exact]
    for _ in range(3):
        layers.append(torch.mm(matrix, layers[-1]))
    powers = torch.stack(layers).mean(dim=0)
    findings.check("product with the graph, against torch.sparse in float64", apart(graph(features), layers[1]), 1e-6)
    given = features.clone().requires_grad_()
    made = graph.mean_of_powers(given, 3)
    findings.check("mean of three powers", apart(made, powers), ALLOWED["powers"])
    (made * slope).sum().backward()
    expected = slope.double()
    total = expected
    for _ in range(3):
        expected = torch.mm(matrix, expected)
        total = total + expected
    assert given.grad is not None
    findings.check("its gradient", apart(given.grad, total / 4), ALLOWED["gradient"])
    if device.type == "cuda":
        narrow = graph.mean_of_powers(features, 3, messages=torch.bfloat16)
        findings.check("with bf16 messages", apart(narrow, powers), ALLOWED["bf16 messages"])


def apart(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference, relative to that of what is expected."""
    return float((found.detach().double() - expected).norm() / expected.norm())


def check_steps(findings: Findings, parsed: argparse.Namespace, inter: dict[str, Any], device: torch.device) -> None:
    """Train the same models step by step and from a recording, and compare where they end."""
    for model in STEPWISE:
        if device.type != "cuda":
            findings.skip(f"{model}, recorded against ordinary steps", "only a GPU records")
            continue
        ordinary, recorded = (trained(model, inter, parsed.seed, execution) for execution in ("eager", "graph"))
        worst = max(apart(recorded[name], value.double()) for name, value in ordinary.items())
        findings.check(f"{model}, weights after recorded and after ordinary steps", worst, ALLOWED["steps"])


def trained(model: str, inter: dict[str, Any], seed: int, execution: str) -> dict[str, Tensor]:
    """Return the weights of a model after three epochs, in which nothing is left to chance."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"execution": execution, "deterministic": True, "epochs": 3, "train_batch_size": 256, "seed": seed}
        given |= {"checkpoint_dir": folder, "show_progress": False, "embedding_size": 16}
        config = Config(model, "made-up", config_dict=given)
        train, _, _ = data_preparation(config, create_dataset(config, inter=inter))
        init_seed(seed, True)
        trainer = get_trainer(config, get_model(model)(config, train.dataset))
        trainer.fit(train, verbose=False, saved=False)
    return {name: value.detach() for name, value in trainer.model.named_parameters()}
