"""Loops that are written out: migrated, run, and compared bit by bit with what they were."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tools.migrate.conftest import Copied, migrate_text, run_migrated
from treadle.tools.migrate import migrate


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def weights(model: Any) -> list[torch.Tensor]:
    return [one.detach().clone() for one in model.state_dict().values()]


@pytest.mark.parametrize(
    ("name", "model", "steps"),
    [("loop_with_accumulation", "model", 12), ("loop_with_autocast", "net", 16), ("loop_of_a_vae", "coder", 20)],
)
def test_a_migrated_loop_ends_with_the_bits_of_the_loop(
    name: str, model: str, steps: int, copied: Copied, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied(f"{name}.txt")
    wanted = weights(runpy.run_path(str(path), run_name="__main__")[model])
    migration = migrate(path)
    assert migration.system == "a hand-written loop"
    text = migration.after.replace("print(losses[-1])", "globals().update(trainer=trainer)")
    path.write_text(text)
    names = runpy.run_path(str(path), run_name="__main__")
    assert all(torch.equal(own, other) for own, other in zip(weights(names[model]), wanted, strict=True))
    assert names["trainer"].progress.step == steps


def test_what_is_understood_leaves_nothing_to_do(copied: Copied) -> None:
    assert migrate(copied("loop_with_accumulation.txt")).left == []
    assert migrate(copied("loop_of_a_vae.txt")).left == []


def test_a_plain_loop_becomes_a_trainer_without_a_class() -> None:
    migration = migrate_text(
        "import torch\nfrom torch import nn\n"
        "loader = torch.utils.data.DataLoader([(torch.ones(3), torch.zeros(1))] * 8, batch_size=2)\n"
        "model = nn.Linear(3, 1)\nloss_fn = nn.MSELoss()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for epoch in range(2):\n"
        "    for x, y in loader:\n"
        "        optimizer.zero_grad()\n"
        "        loss = loss_fn(model(x), y)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
    )
    assert (
        "trainer = Trainer(model, loss_fn, optimizer)\nresult = trainer.train(loader, num_epochs=2)\n"
        in migration.after
    )
    assert "class" not in migration.after
    assert run_migrated(migration)["result"].steps == 8


def test_loops_in_functions_stay_as_they_are_with_what_to_change_by_line(copied: Copied) -> None:
    migration = migrate(copied("loop_in_functions.txt"))
    assert not migration.changed
    assert {note.line: note.text.split(":")[0] for note in migration.left} == {
        0: "the loop over batches is not directly in a loop over epochs, so that nothing was changed; what becomes of "
        "its lines is listed",
        7: "leave it out",
        9: "leave it out",
        10: "leave it out",
    }


LOOP = """import torch
from torch import nn
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader([(torch.ones(3), torch.zeros(1))] * 8, batch_size=2)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        {line}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("model.weight.data.clamp_(0)", "not understood: `model.weight.data.clamp_(0)`"),
        ("if i > 2: break", "not understood: `if i > 2: break`"),
        ("loss = loss * (epoch + 1)", "not understood: the loss depends on the number of the epoch or of the batch"),
        ("while False: pass", "not understood: `while False: pass`"),
    ],
)
def test_a_line_that_is_not_understood_leaves_the_whole_loop_alone(line: str, told: str) -> None:
    migration = migrate_text(LOOP.format(line=line))
    assert not migration.changed
    assert (9, f"{told}; nothing was changed") in [(note.line, note.text) for note in migration.left]


def test_names_that_came_from_the_loop_and_accumulation_without_a_division_are_told() -> None:
    text = LOOP.replace("        {line}\n", "").replace(
        "        optimizer.step()\n        optimizer.zero_grad()\n",
        "        if (i + 1) % 2 == 0:\n            optimizer.step()\n            optimizer.zero_grad()\n",
    )
    told = [note.text for note in migrate_text(f"{text}print(loss)\n").left]
    assert "loss came from the loop; result.history has what was recorded, by name" in told
    assert any(text.startswith("the loss is divided by nothing, and 2 batches make an update") for text in told)


def test_two_loops_of_training_are_told_apart_by_hand() -> None:
    text = LOOP.replace("        {line}\n", "")
    migration = migrate_text(text + text[text.index("for epoch") :])
    assert not migration.changed
    assert "there are 2 loops with a backward pass, in lines 7, 13" in migration.left[0].text


@pytest.mark.parametrize(
    ("batch", "precision"),
    [("autocast('cuda', dtype=torch.float16)", "fp16"), ("torch.autocast('cuda', torch.bfloat16)", "bf16")],
)
def test_the_format_of_an_autocast_is_kept(batch: str, precision: str) -> None:
    text = LOOP.replace("        {line}\n", "").replace(
        "        loss = nn.functional.mse_loss(model(x), y)\n",
        f"        with {batch}:\n            loss = nn.functional.mse_loss(model(x), y)\n",
    )
    assert f'precision="{precision}"' in migrate_text(text).after


def test_what_an_evaluation_reports_besides_its_loss_is_left_to_do() -> None:
    text = LOOP.replace("        {line}\n", "") + (
        "    model.eval()\n"
        "    with torch.no_grad():\n"
        "        right = 0\n"
        "        for x, y in loader:\n"
        "            right += (model(x).round() == y).sum().item()\n"
    )
    migration = migrate_text(text)
    assert "eval_dataset=loader" in migration.after
    assert any("for right, pass metrics= to the trainer" in note.text for note in migration.left)


def test_batches_that_come_from_something_else_than_a_loader_are_told() -> None:
    text = LOOP.replace("        {line}\n", "").replace("torch.utils.data.DataLoader(", "make(")
    told = [note.text for note in migrate_text(text).left]
    assert "loader must be a DataLoader, or data of single samples: a list of batches is taken for samples" in told
