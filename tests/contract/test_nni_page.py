"""The page about trainers in NNI: its one-shot trainer, its layer choice and its utilities run here."""

import re
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.contract.pages import Mend, ported, read_page, run
from treadle import nas

PAGE = "nni-trainers.rst"

DARTS_MENDS = (
    Mend(
        "        ... # init dataloaders and optimizers\n",
        "        self.init_dataloaders_and_optimizers(optimizer)\n",
        "the page leaves out what the comment says: the methods of the class use names that nothing defines",
    ),
)


def block(text: str) -> str:
    """Return the one block of code of the page that holds `text`."""
    blocks = re.findall(r"^\.\. code-block::python\n\s*\n((?:[ \t]+[^\n]*\n|\s*\n)+)", read_page(PAGE), re.MULTILINE)
    (found,) = [code for code in blocks if text in code]
    return dedent(found)


class Space(nn.Module):
    """What the page calls a model with Retiarii-specific modules, with one choice inside of another."""

    def __init__(self) -> None:
        super().__init__()
        inner = nas.LayerChoice({"relu": nn.ReLU(), "tanh": nn.Tanh()}, label="inner")
        self.first = nas.LayerChoice([nn.Sequential(nn.Linear(2, 8), inner), nn.Linear(2, 8)], label="first")
        self.second = nas.LayerChoice({"wide": nn.Linear(8, 8), "none": nn.Identity()}, label="second")
        self.again = nas.LayerChoice({"wide": nn.Linear(8, 8), "none": nn.Identity()}, label="second")
        self.head = nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.again(self.second(self.first(inputs))))
        return output


def rings(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(64, 2, generator=generator)
    return TensorDataset(inputs, (inputs.norm(dim=1) > 1.2).long())


def select_best_of_module(module: Any) -> str:
    """Stand for the function that the page uses and does not define."""
    return list(module.op_choices)[int(module.alpha.argmax())]


def trainer_of_the_page() -> tuple[Any, Any]:
    """Return the trainer of the page, its left-out methods filled in, and its layer choice."""
    names = run(ported(block("class DartsLayerChoice"), *DARTS_MENDS), nn=nn, torch=torch, F=F,
                select_best_of_module=select_best_of_module)  # fmt: skip

    class Filled(names["DartsTrainer"]):  # type: ignore[misc, name-defined]
        def init_dataloaders_and_optimizers(self, optimizer: Any) -> None:
            self.train_loader = DataLoader(rings(0), batch_size=16)
            self.valid_loader = DataLoader(rings(1), batch_size=16)
            self.model_optim = optimizer
            self.ctrl_optim = torch.optim.Adam([module.alpha for _, module in self.nas_modules], 0.1)

        def train_architecture(self, inputs: Tensor, targets: Tensor) -> None:
            self.ctrl_optim.zero_grad()
            self.loss(self.model(inputs), targets).backward()
            self.ctrl_optim.step()

        def train_model_weight(self, inputs: Tensor, targets: Tensor) -> None:
            self.model_optim.zero_grad()
            self.loss(self.model(inputs), targets).backward()
            self.model_optim.step()

    return Filled, names["DartsLayerChoice"]


def test_the_darts_trainer_of_the_page_replaces_every_choice_and_searches() -> None:
    torch.manual_seed(0)
    kind, layer_choice = trainer_of_the_page()
    model = Space()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = kind(model, F.cross_entropy, None, optimizer)
    assert isinstance(trainer, nas.BaseOneShotTrainer)
    assert [name for name, _ in trainer.nas_modules] == ["inner", "first", "second", "second"]
    assert [name for name, module in model.named_modules() if isinstance(module, nas.LayerChoice)] == []
    assert all(isinstance(module, layer_choice) for _, module in trainer.nas_modules)
    before = [module.alpha.detach().clone() for _, module in trainer.nas_modules]
    trainer.fit()
    assert all(not torch.equal(module.alpha, old) for (_, module), old in zip(trainer.nas_modules, before, strict=True))
    architecture = trainer.export()
    assert set(architecture) == {"inner", "first", "second"}


def test_what_the_trainer_of_the_page_exports_is_an_architecture_of_the_space() -> None:
    torch.manual_seed(0)
    kind, _ = trainer_of_the_page()
    model = Space()
    trainer = kind(model, F.cross_entropy, None, torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.num_epochs = 2
    trainer.fit()
    # The page names candidates by their position as text; those of a list are positions here.
    architecture = trainer.export() | {"first": int(trainer.export()["first"])}
    network = nas.freeze(Space(), architecture)
    assert network(torch.zeros(1, 2)).shape == (1, 2)


def test_the_layer_choice_of_the_page_is_the_weighted_sum_of_ours() -> None:
    _, layer_choice = trainer_of_the_page()
    choice = nas.LayerChoice({"one": nn.Linear(2, 3), "other": nn.Linear(2, 3)}, label="op")
    replaced = layer_choice(choice)
    trainer = nas.DartsTrainer(nn.ModuleDict({"op": choice}), F.mse_loss, None, None, 1, rings(0), device="cpu")
    with torch.no_grad():
        trainer.supernet.weights.alpha.copy_(replaced.alpha.view(1, 2))
    trainer.supernet.chooser.prepare(trainer.supernet.weights)
    inputs = torch.randn(4, 2)
    torch.testing.assert_close(choice(inputs), replaced(inputs))


def test_our_darts_trainer_takes_the_arguments_of_the_page() -> None:
    model = Space()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = nas.DartsTrainer(model, F.cross_entropy, None, optimizer, num_epochs=1, dataset=rings(0), callbacks=())
    trainer.fit()
    assert set(trainer.export()) >= {"first", "second"}


@pytest.mark.parametrize("name", ["fit", "export"])
def test_the_page_names_the_methods_that_a_one_shot_trainer_has(name: str) -> None:
    assert f"``{name}()``" in read_page(PAGE)
    assert name in nas.BaseOneShotTrainer.__abstractmethods__
