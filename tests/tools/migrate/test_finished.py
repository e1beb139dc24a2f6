"""A program counts as migrated only if it would run: those that would are told so, all others by line and reason."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract import test_libai_page as libai_page
from tests.contract import test_nni_page as nni_page
from tests.contract import test_recbole_pages as recbole_page
from tests.contract import test_trainer_page as trainer_page
from tests.contract.pages import Mend, block_with
from tests.tools.migrate.conftest import migrate_text
from treadle.tools.migrate.checker import find_problems


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mended(code: str, *mends: Mend) -> str:
    """Return an example of a page with the changes without which nobody can run it; its imports stay theirs."""
    for mend in mends:
        code = code.replace(mend.old, mend.new)
    return code


def from_page(page: Callable[[], str], *before: str, mends: tuple[Mend, ...] = ()) -> Callable[[], str]:
    """Return what reads an example, with the import lines that the page leaves out in front of it."""
    return lambda: "".join(f"{line}\n" for line in before) + mended(page(), *mends)


# Programs as upstream's examples have them, in other words -----------------------------------------------------------

DIGITS = """
import torch
from torch import nn
from torch.optim import SGD
from functools import partial
from pytorch_accelerated.callbacks import EarlyStoppingCallback, SaveBestModelCallback, TrainerCallback
from pytorch_accelerated.trainer import Trainer, TrainerPlaceholderValues


class Count(TrainerCallback):
    def on_train_step_end(self, trainer, batch, batch_output, **kwargs):
        trainer.run_history.update_metric("seen", len(batch[0]))


def main(data):
    model = nn.Linear(4, 2)
    schedule = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1,
                       epochs=TrainerPlaceholderValues.NUM_EPOCHS,
                       steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH)
    trainer = Trainer(model, loss_func=nn.CrossEntropyLoss(), optimizer=SGD(model.parameters(), lr=0.1),
                      callbacks=(Count, EarlyStoppingCallback(early_stopping_patience=2),
                                 SaveBestModelCallback(watch_metric="seen", greater_is_better=True)))
    trainer.train(train_dataset=data, eval_dataset=data, num_epochs=2, per_device_batch_size=8,
                  create_scheduler_fn=schedule)
    trainer.evaluate(dataset=data, per_device_batch_size=64)
"""

GROWING_IMAGES = """
import torch
from torch import nn
from torchmetrics import Accuracy
from pytorch_accelerated.callbacks import TrainerCallback
from pytorch_accelerated.trainer import Trainer


class Share(TrainerCallback):
    def __init__(self, classes):
        self.share = Accuracy(num_classes=classes)

    def on_eval_epoch_end(self, trainer, **kwargs):
        trainer.run_history.update_metric("share", self.share.compute().item())


def main(data_of):
    model = nn.Conv2d(3, 3, 3)
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters()), callbacks=(Share(3),))
    for size in (64, 128, 224):
        trainer.train(train_dataset=data_of(size), num_epochs=2, reset_run_history=False)
"""

MIXED_UP = """
from pytorch_accelerated.trainer import Trainer


class MixTrainer(Trainer):
    def __init__(self, mix, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mix = mix

    def calculate_train_batch_loss(self, batch):
        return super().calculate_train_batch_loss(self.mix(*batch))

    def scheduler_step(self):
        self.scheduler.step_update(num_updates=self.updates_so_far)


def main(model, loss, optimizer, data, mix):
    trainer = MixTrainer(model=model, loss_func=loss, optimizer=optimizer, mix=mix)
    trainer.train(train_dataset=data, num_epochs=3, scheduler_type="cosine")
"""

RUN_CONFIG = """
from pytorch_accelerated.trainer import Trainer


class Longer(Trainer):
    def _create_run_config(self{arguments}):
        return super()._create_run_config({passed})
"""
THEIRS = (
    *("per_device_batch_size", "num_epochs", "gradient_accumulation_steps", "max_num_train_steps"),
    "gradient_clip_value",
)

BERT = """
import oneflow as flow
from libai.config import LazyCall, get_config
from libai.optim import get_default_optimizer_params

optim = LazyCall(flow.optim.AdamW)(
    params=LazyCall(get_default_optimizer_params)(clip_grad_max_norm=1.0, clip_grad_norm_type=2.0),
    lr=1e-4,
    weight_decay=0.01,
{more})
train = get_config("common/train.py").train
train.train_iter = 100
"""

RANKS = """
import oneflow as flow
from libai.engine import DefaultTrainer


class Quiet(DefaultTrainer):
    def build_writers(self):
        return super().build_writers() if flow.env.get_rank() == 0 else []
"""

DETECTING = """
from detectron2.config import LazyConfig, instantiate
from detectron2.engine import default_argument_parser, default_setup, HookBase


class Say(HookBase):
    def after_step(self):
        print(self.trainer.iter)


def main(args):
    cfg = LazyConfig.apply_overrides(LazyConfig.load(args.config_file), args.opts)
    default_setup(cfg, args)
    return instantiate(cfg.model)


if __name__ == "__main__":
    main(default_argument_parser().parse_args())
"""

HOOKED = """
from libai.engine import hooks
from libai.engine.trainer import HookBase


class Norms(HookBase):
    def after_forward(self):
        print(self.trainer.iter)


made = [Norms(), hooks.EvalHook(100, lambda: {{}}{more})]
"""

QUICK = """
from recbole.quick_start import run_recbole
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.general_recommender import BPR
from recbole.trainer import Trainer

if __name__ == "__main__":
    run_recbole(model="BPR", dataset="ml-100k")
    config = Config(model="BPR", dataset="ml-100k")
    dataset = create_dataset(config)
    train, valid, test = data_preparation(config, dataset)
    model = BPR(config, train.dataset)
    trainer = Trainer(config, model)
    trainer.fit(train, valid{more})
    print(trainer.evaluate(test))
"""

SEARCHED = """
import torch.nn as torch_nn
import nni.retiarii.nn.pytorch as nn
from nni.retiarii.oneshot.pytorch import DartsTrainer


class Net(torch_nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LayerChoice([torch_nn.Linear(4, 4), torch_nn.Identity()], label="layer")

    def forward(self, inputs):
        return self.layer(inputs)


def main(data, metrics, optimizer):
    trainer = DartsTrainer(model=Net(), loss=torch_nn.CrossEntropyLoss(), metrics=metrics, optimizer=optimizer,
                           num_epochs=2, dataset=data, batch_size=8, log_frequency=10)
    trainer.fit()
    return trainer.export()
"""

STEPS = """
import torch
import pytorch_lightning as pl


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1{more})


pl.Trainer(max_epochs=2).fit(Line(), [[torch.ones(2, 1)]])
"""

HOOKS = ("import logging", "from libai.engine.trainer import HookBase", "logger = logging.getLogger(__name__)")
STEP = ("from typing import Callable", "from libai.engine.trainer import EagerTrainer")
PROGRAM = (
    "from libai.engine.trainer import EagerTrainer as _mytrainer, HookBase",
    "def myhook():",
    "    return HookBase()",
)

FINISHED: dict[str, Callable[[], str]] = {
    "page: schedule": from_page(
        lambda: block_with(trainer_page.PAGE, trainer_page.FACTORY_EXAMPLE),
        "from pytorch_accelerated import Trainer",
        mends=(trainer_page.MISSPELT_PARTIAL,),
    ),
    "page: metrics": from_page(
        lambda: block_with(trainer_page.PAGE, trainer_page.METRICS_EXAMPLE), mends=tuple(trainer_page.MISSING_TASK)
    ),
    "page: hook": from_page(lambda: libai_page.block("class InfoHook"), *HOOKS),
    "page: step": from_page(lambda: libai_page.block("class MyEagerTrainer"), *STEP, mends=libai_page.STEP_MENDS),
    "page: program": from_page(lambda: libai_page.block("class MyTrainer"), *PROGRAM, mends=libai_page.PROGRAM_MENDS),
    "page: two losses": from_page(lambda: recbole_page.block(2)),
    "page: a loop": from_page(lambda: recbole_page.in_class(recbole_page.block(1))),
    "digits": lambda: DIGITS,
    "a run config": lambda: RUN_CONFIG.format(arguments=", " + ", ".join(THEIRS), passed=", ".join(THEIRS)),
    "a config": lambda: BERT.format(more=""),
    "detection": lambda: DETECTING,
    "recommendation": lambda: QUICK.format(more=""),
    "a search": lambda: SEARCHED,
    "steps": lambda: STEPS.format(more=""),
}

UNFINISHED: dict[str, tuple[Callable[[], str], str, str]] = {
    "page: schedule as written": (
        from_page(
            lambda: block_with(trainer_page.PAGE, trainer_page.FACTORY_EXAMPLE),
            "from pytorch_accelerated import Trainer",
        ),
        "import Partial",
        "functools has no 'Partial'; did you mean 'partial'?",
    ),
    "page: metrics as written": (
        from_page(lambda: block_with(trainer_page.PAGE, trainer_page.METRICS_EXAMPLE)),
        "Accuracy(",
        "Accuracy: missing a required argument: 'task'",
    ),
    "page: step as written": (
        from_page(lambda: libai_page.block("class MyEagerTrainer"), *STEP),
        "self.model(**data)",
        "data is not defined",
    ),
    "page: mixed precision as written": (
        from_page(lambda: recbole_page.block(5)),
        "in enumerate(iter_data)",
        "iter_data is not defined",
    ),
    "page: darts as written": (
        from_page(lambda: nni_page.block("class DartsTrainer")),
        "select_best_of_module(",
        "select_best_of_module is not defined",
    ),
    "growing images": (lambda: GROWING_IMAGES, "Accuracy(num", "Accuracy: missing a required argument: 'task'"),
    "an argument that is gone": (
        lambda: MIXED_UP,
        "trainer.train(",
        "Trainer.train: got an unexpected keyword argument 'scheduler_type'; did you mean 'scheduler_interval'?",
    ),
    "an attribute that is not there": (lambda: MIXED_UP, "step_update", "Trainer has no 'updates_so_far'"),
    "a run config without arguments": (
        lambda: RUN_CONFIG.format(arguments="", passed=""),
        "def _create_run_config",
        "_create_run_config(self) is called as _create_run_config(self, per_device_batch_size, num_epochs, "
        "gradient_accumulation_steps, max_num_train_steps, gradient_clip_value); take these arguments",
    ),
    "an argument of oneflow's": (
        lambda: BERT.format(more="    do_bias_correction=True,\n"),
        "LazyCall(flow.optim.AdamW)",
        "AdamW: got an unexpected keyword argument 'do_bias_correction'",
    ),
    "a key of oneflow's": (
        lambda: (
            "from libai.config import get_config\n\n"
            "optim = get_config('common/optim.py').optim\noptim.lr = 1e-3\noptim.do_bias_correction = True\n"
        ),
        "do_bias_correction",
        "optim.do_bias_correction: AdamW takes no 'do_bias_correction'",
    ),
    "a key of oneflow's, set by another name": (
        lambda: (
            "from libai.config import get_config\n\n"
            "mine = get_config('common/optim.py').optim\nmine.update(dict(do_bias_correction=True))\n"
        ),
        "do_bias_correction",
        "optim.do_bias_correction: AdamW takes no 'do_bias_correction'",
    ),
    "a key in a key": (
        lambda: (
            "import libai\nfrom configs.common.train import train as run\n\nrun.update({'amp': {'enable': True}})\n"
        ),
        "enable",
        "train.amp.enable is not known; did you mean 'amp.enabled'?",
    ),
    "a key by its text": (
        lambda: "import libai\nfrom configs.common.train import train\n\ntrain['train_itr'] = 5\n",
        "train_itr",
        "train.train_itr is not known; did you mean 'train_iter'?",
    ),
    "ranks of oneflow's": (lambda: RANKS, "flow.env", "oneflow.env.get_rank has no counterpart"),
    "a moment that nobody calls": (
        lambda: HOOKED.format(more=""),
        "def after_forward",
        "nobody calls after_forward: HookBase has no such method",
    ),
    "one argument too many": (
        lambda: HOOKED.format(more=", True, 3"),
        "made =",
        "EvalHook: too many positional arguments",
    ),
    "an argument of fit": (
        lambda: QUICK.format(more=", show_progres=True"),
        "trainer.fit",
        "Trainer.fit: got an unexpected keyword argument 'show_progres'; did you mean 'show_progress'?",
    ),
    "an argument of torch's": (
        lambda: STEPS.format(more=", momentun=0.9"),
        "torch.optim.SGD",
        "SGD: got an unexpected keyword argument 'momentun'; did you mean 'momentum'?",
    ),
}


@pytest.mark.parametrize("name", FINISHED)
def test_a_program_that_would_run_has_nothing_left_to_do(name: str) -> None:
    migration = migrate_text(FINISHED[name]())
    assert migration.changed
    assert [(note.line, note.text) for note in migration.left] == []


@pytest.mark.parametrize("name", UNFINISHED)
def test_a_program_that_would_not_run_is_told_by_line_and_reason(name: str) -> None:
    read, where, told = UNFINISHED[name]
    text = read()
    line = next(number for number, line in enumerate(text.splitlines(), 1) if where in line)
    assert (line, told) in [(note.line, note.text) for note in migrate_text(text).left]


def test_there_are_programs_enough() -> None:
    assert len(FINISHED) + len(UNFINISHED) >= 15
    assert len(UNFINISHED) >= 5


# The checks, one by one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    {
        "def f(:\n": (1, "it is no Python: invalid syntax (<unknown>, line 1)"),
        "return 1\n": (1, "it is no Python: 'return' outside function (program, line 1)"),
        "from treadle import Trainr\n": (1, "treadle has no 'Trainr'; did you mean 'Trainer'?"),
        "import treadle.nothing\n": (1, "there is no module treadle.nothing"),
        "import treadle\n\ntreadle.engine.distt\n": (3, "treadle.engine has no 'distt'; did you mean 'dist'?"),
        "import torch\nx = torch.nn.Linear(3)\n": (2, "Linear: missing a required argument: 'out_features'"),
        "from treadle import Trainer\n\nclass A(Trainer):\n    def _mine(self):\n        pass\n": (
            4,
            "nobody calls _mine: Trainer has no such method",
        ),
        "from treadle import Trainer\n\nclass A(Trainer):\n    def f(self):\n        super().nothing()\n": (
            5,
            "Trainer has no 'nothing'",
        ),
        "import torch\nfrom treadle.config import LazyCall\n\no = LazyCall(torch.optim.Adam)(lr=1)\no.lrr = 2\n": (
            5,
            "Adam: got an unexpected keyword argument 'lrr'; did you mean 'lr'?",
        ),
        "import torch\nfrom treadle.config import LazyCall\n\no = LazyCall(torch.optim.Adam)(lr=1)\no['lrr'] = 2\n": (
            5,
            "Adam: got an unexpected keyword argument 'lrr'; did you mean 'lr'?",
        ),
        "import torch\nfrom treadle.config import LazyCall\n\no = LazyCall(torch.optim.Adam)()\no.update(lrr=2)\n": (
            5,
            "Adam: got an unexpected keyword argument 'lrr'; did you mean 'lr'?",
        ),
        "from treadle import Trainer\n\nclass A(Trainer):\n    def f(self):\n        self._accelerator.prepare()\n": (
            5,
            "trainer._accelerator has no 'prepare'; the trainer prepares its own model, optimizer and data; use "
            "add_stream() for other data, and .to(trainer.device) for other modules",
        ),
        "class A:\n    def __init__(self, a):\n        pass\n\nA()\n": (5, "A: missing a required argument: 'a'"),
        "from functools import partial\nimport torch\npartial(torch.nn.Linear, in_featurs=1)\n": (
            3,
            "Linear: got an unexpected keyword argument 'in_featurs'; did you mean 'in_features'?",
        ),
    }.items(),
)
def test_what_keeps_a_program_from_running_is_found(text: str, told: tuple[int, str]) -> None:
    assert told in find_problems(text)


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nx = torch.nn.Linear(*range(2))\ny = torch.nn.Linear(**{'a': 1})\n",
        "from treadle import Trainer\n\ndef f(Trainer):\n    Trainer(1, 2, 3, 4, nonsense=5)\n",
        "from treadle import Trainer\nTrainer = print\nTrainer(nonsense=5)\n",
        "from somewhere import *\nprint(whatever)\n",
        "def f():\n    global later\n    later = 1\n\ndef g():\n    return later\n",
        "try:\n    import treadle\nexcept ImportError:\n    treadle = None\ntreadle.whatever\n",
        "from treadle import Trainer\n\nclass A(Trainer):\n    def _mine(self):\n        return self.kept\n\n"
        "    def training_run_start(self):\n        self.kept = 3\n        self._mine()\n",
        "for place, item in enumerate([1]):\n    print([place for item in [item]], lambda x: x)\n",
        "import torch\nfrom treadle.config import LazyCall\n\no = LazyCall(torch.optim.Adam)()\n"
        "o.lr = 2\no._target_ = 'a'\n",
        "from treadle import Trainer\n\nclass A(Trainer):\n    def f(self, loss):\n"
        "        self._accelerator.backward(loss)\n",
        "with open('a') as file, open('b') as other:\n    print(file, other)\n",
    ],
)
def test_what_nobody_can_tell_is_not_told(text: str) -> None:
    assert find_problems(text) == []


def test_a_migrated_program_is_python(monkeypatch: pytest.MonkeyPatch) -> None:
    migration = migrate_text(DIGITS)
    ast.parse(migration.after)
    assert not re.search("pytorch_accelerated", migration.after)


def test_nothing_is_told_of_programs_that_run() -> None:
    examples = sorted(Path(__file__).parents[3].glob("examples/**/*.py"))
    assert len(examples) > 5
    assert [(path.name, found) for path in examples if (found := find_problems(path.read_text()))] == []
