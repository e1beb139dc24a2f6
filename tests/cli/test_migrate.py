"""`treadle migrate` and `treadle import`, in a shell."""

import json
from pathlib import Path

import torch
from torch import nn

from tests.cli.conftest import Treadle
from treadle.checkpoint import read_file
from treadle.trainer import Trainer

PROGRAM = "from pytorch_accelerated import Trainer\n"


def test_the_change_is_shown_as_a_diff_and_nothing_is_written(project: Path, treadle: Treadle) -> None:
    Path("a.py").write_text(PROGRAM)
    told = treadle("migrate", "a.py").stdout
    assert told.splitlines()[-2:] == ["-from pytorch_accelerated import Trainer", "+from treadle import Trainer"]
    assert Path("a.py").read_text() == PROGRAM


def test_what_is_left_to_do_is_told_by_line_and_is_status_1(project: Path, treadle: Treadle) -> None:
    Path("a.py").write_text(PROGRAM + "from pytorch_accelerated.utils import worker_init_fn\n")
    told = treadle("migrate", "a.py", "--write", status=1).stdout.splitlines()
    assert told[0] == "a.py: migrated from pytorch-accelerated; the old one is a.py.orig"
    assert told[1].startswith("a.py:2: left to do: pytorch_accelerated.utils.worker_init_fn has no counterpart")
    assert "from treadle import Trainer\n" in Path("a.py").read_text()
    assert Path("a.py.orig").read_text().startswith(PROGRAM)


def test_settings_that_are_good_as_they_are_stay(project: Path, treadle: Treadle) -> None:
    Path("a.yaml").write_text("epochs: 3\n")
    assert treadle("migrate", "a.yaml").stdout == "a.yaml: nothing to change\n"


def test_a_file_of_no_system_is_one_message(project: Path, treadle: Treadle) -> None:
    assert "imports\n  none of the systems that are known" in treadle("migrate", "configs/small.py", status=1).stderr


def test_a_checkpoint_of_lightning_is_imported_and_loaded(project: Path, treadle: Treadle) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    states = {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}
    torch.save({**states, "epoch": 2, "pytorch-lightning_version": "2.4.0"}, "a.ckpt")
    told = treadle("import", "a.ckpt", "-o", "weights.safetensors").stdout
    assert told == "2 tensors and the state of an optimizer of Lightning written to weights.safetensors\n"
    assert read_file("weights.safetensors")["facts"]["epoch"] == 2
    other = nn.Linear(2, 1)
    trainer = Trainer(other, nn.MSELoss(), torch.optim.AdamW(other.parameters(), lr=0.1), callbacks=())
    trainer.load_checkpoint("weights.safetensors")
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(trainer.optimizer.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    assert "2 tensors written" in treadle("export", "weights.safetensors", "--output", "plain.safetensors").stdout


def test_an_architecture_is_imported_with_its_space(project: Path, treadle: Treadle) -> None:
    Path("mine/space.py").write_text(
        "from torch import nn\nfrom treadle.nas import LayerChoice\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = LayerChoice([nn.Linear(1, 1), nn.Identity()], label='layer')\n\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    Path("export.json").write_text('{"layer": 1}')
    assert "pass --space" in treadle("import", "export.json", "-o", "found.json", status=1).stderr
    told = treadle("import", "export.json", "-o", "found.json", "--space", "mine.space.Net").stdout
    assert told == "1 choices written to found.json\n"
    assert json.loads(Path("found.json").read_text()) == {"layer": 1}
