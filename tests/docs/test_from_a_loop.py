"""docs/from-a-loop.md: hand-written loops and their Treadle versions have equal losses, and the page shows both."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.docs.from_a_loop import KINDS, PAGE, count_lines, parts
from benchmarks.docs.readme import section_of
from treadle import Trainer

EPOCHS = {
    "classifier": ["--epochs", "3"],
    "vae": ["--epochs", "3"],
    "recurrent": ["--epochs", "2"],
    "gpt": ["--max-iters", "40"],
}
BACKWARDS = {"classifier": 3 * 22, "vae": 3 * 22, "recurrent": 2 * 30, "gpt": 40 * 4}


def losses_of(kind: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return what each `backward()` of a program is called on; random numbers begin anew where training begins."""
    losses: list[Tensor] = []
    begun = SimpleNamespace(yet=False)
    backward, train = Tensor.backward, nn.Module.train

    def noted(loss: Tensor, *args: object, **kwargs: object) -> None:
        losses.append(loss.detach().clone())
        backward(loss, *args, **kwargs)

    def seeded(module: nn.Module, mode: bool = True) -> nn.Module:
        if mode and not begun.yet:
            begun.yet = True
            torch.manual_seed(0)
        return train(module, mode)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "backward", noted)
        patch.setattr(nn.Module, "train", seeded)
        program = importlib.import_module(f"examples.from_a_loop.{kind}.{name}")
        program.main(["--out", str(folder), *EPOCHS[kind]])
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_both_programs_have_the_same_losses_bit_for_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    by_loop = losses_of(kind, "loop", tmp_path / "loop", monkeypatch)
    by_trainer = losses_of(kind, "trainer", tmp_path / "trainer", monkeypatch)
    assert len(by_loop) == len(by_trainer) == BACKWARDS[kind]
    assert torch.equal(torch.stack(by_loop), torch.stack(by_trainer))
    assert by_loop[-1] < by_loop[0]


@pytest.mark.parametrize(("kind", "step", "micro_batches"), [("recurrent", 40, 1), ("gpt", 20, 4)])
def test_what_the_programs_carry_along_is_resumed(
    kind: str,
    step: int,
    micro_batches: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = losses_of(kind, "trainer", tmp_path / "whole", monkeypatch)
    update = Trainer.update

    def dies(trainer: Trainer, *args: object) -> None:
        if trainer.progress.step == step + 5:
            raise ZeroDivisionError
        update(trainer, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", dies)
        with pytest.raises(ZeroDivisionError):
            losses_of(kind, "trainer", tmp_path / "cut", monkeypatch)
    rest = losses_of(kind, "trainer", tmp_path / "cut", monkeypatch)
    assert f"resuming from step {step} of {tmp_path / 'cut'}" in capsys.readouterr().out
    assert torch.equal(torch.stack(rest), torch.stack(whole[step * micro_batches :]))


def test_the_page_shows_the_programs_and_their_lines_as_they_are() -> None:
    for name, text in parts().items():
        assert section_of(name, PAGE).strip() == text.strip(), "python -m benchmarks.docs.from_a_loop writes it"


def test_lines_without_code_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    body = ["def f():", '    """Text."""', "    # why", "    return [", "        1,", "    ]"]
    path.write_text("\n".join(['"""Text', 'of two lines."""', "", "import os", "", *body, ""]))
    assert count_lines(path) == 5
