"""The page about training in LiBai: its program, its hook, its inner trainer and its metric run here."""

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.pages import Mend, ported, read_page, run
from tests.engine.parts import Classifier
from treadle.engine import DefaultTrainer, EagerTrainer, HookBase

PAGE = "libai-training.md"

CONFIG = """
import torch
from tests.engine.parts import Classifier, Points
from treadle.config import LazyCall as L, get_config

model = L(Classifier)()
optim = L(torch.optim.SGD)(lr=0.1)
dataloader = {"train": L(Points)(), "test": [L(Points)(count=20, seed=1)]}
train = get_config("common/train.py").train
train.update(train_iter=200, train_micro_batch_size=8, dist={"device_type": "cpu"}, checkpointer={"period": 100})
"""

PROGRAM_MENDS = (
    Mend(
        "import ...\n",
        "import logging\n"
        "from libai.config import LazyConfig, default_argument_parser\n"
        "from libai.engine import default_setup, hooks\n"
        "from libai.utils import distributed as dist\n",
        "the page leaves its imports out: names are undefined",
    ),
    Mend("from path_to_myhook import myhook\n", "", "the module stands for the hook of the page, which is given"),
    Mend("from path_to_mytrainer import _mytrainer\n", "", "the module stands for the trainer of the page"),
    Mend(
        "_mytrainer()",
        "_mytrainer(self.model, self.train_loader, self.optimizer, self.cfg.train.num_accumulation_steps)",
        "its required arguments are missing",
    ),
    Mend(
        "def main(args):\n    ...\n",
        "def main(args):\n"
        "    cfg = LazyConfig.apply_overrides(LazyConfig.load(args.config_file), args.opts)\n"
        "    default_setup(cfg, args)\n",
        "cfg is undefined",
    ),
)

STEP_MENDS = (
    Mend(
        "        ...\n        loss_dict",
        "        data = get_batch(next(self._data_loader_iter))\n        loss_dict",
        "data is undefined",
    ),
    Mend(
        "        self.previous_output = loss_dict\n        ...\n",
        "        self.previous_output = loss_dict\n"
        "        sum(loss_dict.values()).backward()\n"
        "        self.write_metrics(loss_dict, 0.0)\n"
        "        self.optimizer.step()\n"
        "        self.optimizer.zero_grad()\n",
        "the page leaves out what follows in every step",
    ),
)


def block(text: str) -> str:
    """Return the one block of code of the page that holds `text`."""
    blocks = re.findall(r"^```python *\n(.*?)^```", read_page(PAGE), re.MULTILINE | re.DOTALL)
    (found,) = [code for code in blocks if text in code]
    return str(found)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    return path


def test_the_program_of_the_page_trains_with_its_hook_and_its_inner_trainer(
    tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook = run(ported(block("class InfoHook")), HookBase=HookBase, logger=logging.getLogger("libai.hook"))["InfoHook"]
    step = ported(block("class MyEagerTrainer"), *STEP_MENDS)
    inner = run(step, EagerTrainer=EagerTrainer, Callable=Callable)["MyEagerTrainer"]
    program = ported(block("class MyTrainer"), *PROGRAM_MENDS)
    arguments = ["--config-file", str(config_file), f"train.output_dir={tmp_path / 'out'}", "train.log_period=50"]
    monkeypatch.setattr(sys, "argv", ["my_train_net.py", *arguments])
    with caplog.at_level(logging.INFO):
        names = run(program, __name__="__main__", myhook=hook, _mytrainer=inner)
    messages = [record.message for record in caplog.records if record.name == "libai.hook"]
    assert messages == ["start training at 0", "iteration 0!", "iteration 100!", "end training ad 200"]
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.json").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [49, 99, 149, 199]
    assert lines[-1]["total_loss"] < lines[0]["total_loss"]
    assert lines[-1]["lr"] < 0.01
    assert issubclass(names["MyTrainer"], DefaultTrainer)
    assert (tmp_path / "out" / "checkpoints" / "model_final").exists()


def test_the_inner_trainer_of_the_page_keeps_the_last_output(tmp_path: Path) -> None:
    step = ported(block("class MyEagerTrainer"), *STEP_MENDS)
    inner = run(step, EagerTrainer=EagerTrainer, Callable=Callable)["MyEagerTrainer"]
    model = Classifier()
    batch = {"inputs": torch.ones(2, 2), "labels": torch.zeros(2, dtype=torch.long)}
    trainer = inner(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.train(0, 2)
    assert set(trainer.previous_output) == {"losses"}


def test_the_hook_of_the_page_has_the_moments_of_ours() -> None:
    theirs = run(block("class HookBase"))["HookBase"]
    moments = [name for name in vars(theirs) if not name.startswith("_")]
    assert moments == ["before_train", "after_train", "before_step", "after_step"]
    assert all(callable(getattr(HookBase, name)) for name in moments)


def test_the_loop_of_the_page_is_the_loop_of_a_run() -> None:
    called = re.findall(
        r"self\.(before_train|before_step|run_step|after_step|after_train)\(\)", block("self.run_step()")
    )
    calls: list[str] = []
    moments: Any = {name: lambda self, name=name: calls.append(name) for name in set(called) - {"run_step"}}
    hook = type("Hook", (HookBase,), moments)()
    model = Classifier()

    class Noting(EagerTrainer):
        def run_step(self, get_batch: Any) -> None:  # type: ignore[override]
            calls.append("run_step")

    trainer = Noting(model, [()], torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.register_hooks([hook])
    trainer.train(0, 1)
    assert calls == called


def test_a_model_puts_its_own_metric_as_the_page_shows() -> None:
    mends = (
        Mend("value = # compute the value from inputs", "value = inputs.mean()", "nothing is assigned: not Python"),
        Mend("# inside the model:\n", "def report(self, inputs):\n", "it stands outside of the method it is for"),
        Mend("if self.training:", "    if self.training:", "indentation"),
        Mend("    value", "        value", "indentation"),
        Mend("    storage", "        storage", "indentation"),
    )
    report = run(ported(block("get_event_storage()"), *mends))["report"]

    class Reporting(Classifier):
        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            report(self, inputs)
            return super().forward(inputs, labels)

    model = Reporting()
    batch = {"inputs": torch.full((2, 2), 3.0), "labels": torch.zeros(2, dtype=torch.long)}
    trainer = EagerTrainer(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.train(0, 2)
    assert trainer.storage.latest()["some_accuracy"] == (3.0, 1)
