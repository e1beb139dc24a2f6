"""The pages about RecBole's trainers: their examples run here, and their classes have their methods and arguments."""

import inspect
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn

from tests.contract.pages import Mend, ported, read_page, run
from tests.recsys.trainer.runs import make
from treadle.recsys import AbstractTrainer, Interaction, Trainer
from treadle.recsys.models.general_recommender import BPR

PAGE = "recbole-customize-trainers.rst"
NOTES = "recbole-trainers-notes.md"


class TwoLosses(BPR):
    """A model with the two losses, and the pretrained part, that the page's trainers ask for."""

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.pretrained_part = nn.Linear(8, 8, bias=False)
        self.calls: list[str] = []

    def calculate_loss1(self, interaction: Interaction) -> torch.Tensor:
        self.calls.append("loss1")
        vectors = self.pretrained_part(self.user_embedding(interaction[self.USER_ID]))
        return self.calculate_loss(interaction) + 1e-3 * vectors.square().mean()

    def calculate_loss2(self, interaction: Interaction) -> torch.Tensor:
        self.calls.append("loss2")
        return 2 * self.calculate_loss(interaction)


def blocks() -> list[str]:
    """Return the code of the page, block by block."""
    found = re.findall(r"^\.\. code:: python ?\n\s*\n((?:[ \t]+[^\n]*\n|\s*\n)+)", read_page(PAGE) + "\n", re.MULTILINE)
    return [dedent(block).strip("\n") + "\n" for block in found]


def block(number: int) -> str:
    return blocks()[number]


def test_the_page_has_the_eight_blocks_that_are_tested_here() -> None:
    assert len(blocks()) == 8


def in_class(code: str) -> str:
    """Return a block that is a method, in a class."""
    body = "".join(f"    {line}\n" for line in code.splitlines())
    return f"from recbole.trainer import Trainer\nclass NewTrainer(Trainer):\n{body}"


SCALER_MENDS = (
    Mend("enumerate(iter_data)", "enumerate(train_data)", "iter_data is undefined"),
    Mend(
        "    self.model.train()\n",
        "    self.model.train()\n    total_loss, loss_func = None, self.model.calculate_loss\n",
        "total_loss and loss_func are undefined",
    ),
    Mend("scaler.scale(loss)", "scaler.scale(losses)", "loss is undefined"),
)
OPTIMIZER_MENDS = (
    Mend("self.model.pretrained_part.parameters())\n", "self.model.pretrained_part.parameters()))\n", "brackets"),
    Mend('{"pretrained_params":', '{"params":', "torch refuses a group without 'params': an undefined name"),
)


def trained(tmp_path: Path, kind: Any, **given: Any) -> Any:
    """Train with a trainer of the page, and return it."""
    made = make(tmp_path, TwoLosses, kind=kind, embedding_size=8, **{"epochs": 2, **given})
    score, result = made.fit()
    assert set(result) == {"recall@5", "ndcg@5", "mrr@5"}
    assert score == made.trainer.best_valid_score
    assert made.trainer.evaluate(made.test) is not None
    return made.trainer


# 1. Alternative optimization ----------------------------------------------------------------------------------


def assert_alternating(trainer: Any) -> None:
    each = len(trainer.model.calls) // 2
    assert trainer.model.calls == ["loss1"] * each + ["loss2"] * each
    assert trainer.train_loss_dict[1] > 1.5 * trainer.train_loss_dict[0]


def test_the_complete_example_of_alternating_losses_runs_as_it_is_written(tmp_path: Path) -> None:
    assert_alternating(trained(tmp_path, run(ported(block(2)))["NewTrainer"]))


def test_the_steps_of_that_example_put_together_are_the_same(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in block(1).splitlines())
    assert_alternating(trained(tmp_path, run(ported(block(0).rstrip() + "\n\n" + body))["NewTrainer"]))


# 2. Mixed precision -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp.GradScaler.*:FutureWarning")
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("complete", [False, True])
def test_the_example_of_mixed_precision_runs(tmp_path: Path, complete: bool, enabled: bool) -> None:
    if complete:
        class_part, method = block(5).split("def _train_epoch", 1)
        method = dedent("def _train_epoch" + method)
    else:
        class_part, method = block(3), block(4)
    mended = method
    for mend in SCALER_MENDS:
        assert mend.old in mended, mend.old
        mended = mended.replace(mend.old, mend.new)
    body = "".join(f"    {line}\n" for line in mended.splitlines())
    code = ported(class_part.rstrip() + "\n\n" + body)
    kind = run(code, torch=torch)["NewTrainer"]
    trainer = trained(tmp_path, kind, enable_amp=enabled, enable_scaler=enabled)
    assert trainer.enable_amp is enabled
    assert trainer.enable_scaler is False  # there is no CUDA device here


# 3. Layer-specific learning rate ------------------------------------------------------------------------------


def test_the_example_of_layer_specific_rates_builds_its_optimizer(tmp_path: Path) -> None:
    kind = run(ported(in_class(block(6)), *OPTIMIZER_MENDS), optim=torch.optim)["NewTrainer"]
    trainer = trained(tmp_path, kind)
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert rates == [1e-3, 1e-5]
    assert [tuple(one.shape) for one in trainer.optimizer.param_groups[1]["params"]] == [(8, 8)]


def test_the_complete_example_of_layer_specific_rates_runs(tmp_path: Path) -> None:
    class_part, method = block(7).split("def _train_epoch", 1)
    lines = ("def _train_epoch" + method).splitlines()
    head, loop = lines[:4], lines[4:]
    body = [f"    {head[0]}", *head[1:3], head[3], *(f"    {line}" for line in loop[:-1]), loop[-1]]
    mends = (
        Mend("_build_optimizer()", "_build_optimizer('adam', 1e-3, 0.0)", "its required arguments are missing"),
        Mend(
            "class NewTrainer(Trainer):\n",
            "class NewTrainer(Trainer):\n" + "".join(f"    {line}\n" for line in block(6).splitlines()),
            "the method of the block before is meant to be in it",
        ),
        *OPTIMIZER_MENDS,
    )
    code = ported(class_part.rstrip() + "\n\n" + "\n".join(body) + "\n", *mends)
    trainer = trained(tmp_path, run(code, optim=torch.optim)["NewTrainer"])
    assert set(trainer.model.calls) == {"loss1"}
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [1e-3, 1e-5]


# The notes ----------------------------------------------------------------------------------------------------


def noted(method: str) -> dict[str, str]:
    """Return the arguments of a method as the notes write them: the name, and the default if there is one."""
    (signature,) = re.findall(rf"`{method}\(([^)]+)\)", read_page(NOTES))
    pairs = (part.split("=") for part in signature.split(","))
    return {pair[0].split(":")[0].strip(): pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


@pytest.mark.parametrize("method", ["fit", "evaluate", "resume_checkpoint"])
def test_a_method_has_the_arguments_and_defaults_of_the_notes(method: str) -> None:
    parameters = list(inspect.signature(getattr(Trainer, method)).parameters.values())[1:]
    ours = {one.name: "" if one.default is one.empty else repr(one.default) for one in parameters}
    assert ours == noted(method)


def test_the_abstract_trainer_has_the_methods_of_the_notes() -> None:
    section = read_page(NOTES).split("- Trainerクラス")[0]
    names = re.findall(r"^    - (\w+)\(", section, re.MULTILINE)
    assert names == ["fit", "evaluate", "set_reduce_hook", "sync_grad_loss"]
    assert all(callable(getattr(AbstractTrainer, name)) for name in names)


def test_without_validation_data_the_notes_promise_minus_one_and_none(tmp_path: Path) -> None:
    assert "(-1,None)" in read_page(NOTES)
    made = make(tmp_path, epochs=1)
    assert made.trainer.fit(made.train, verbose=False) == (-1, None)


def test_fit_calls_train_epoch_and_evaluate_is_called_by_valid_epoch_as_the_page_says(tmp_path: Path) -> None:
    called: list[str] = []

    class Calling(Trainer):
        def _train_epoch(self, *args: Any, **kwargs: Any) -> Any:
            called.append("_train_epoch")
            return super()._train_epoch(*args, **kwargs)

        def _valid_epoch(self, *args: Any, **kwargs: Any) -> Any:
            called.append("_valid_epoch")
            return super()._valid_epoch(*args, **kwargs)

        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            called.append("evaluate")
            return super().evaluate(*args, **kwargs)

    make(tmp_path, kind=Calling, epochs=2).fit()
    assert called == ["_train_epoch", "_valid_epoch", "evaluate"] * 2
