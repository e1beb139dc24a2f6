"""What cannot be migrated is said, with its line; what is odd is not broken."""

from pathlib import Path

import pytest

from tests.tools.migrate.conftest import migrate_text
from treadle.errors import ConfigError
from treadle.tools.migrate import Migration, migrate


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(migration: Migration) -> dict[int, str]:
    """Return what is left to do, by line."""
    return {note.line: note.text for note in migration.left}


def test_a_method_that_is_no_longer_called_and_a_name_without_a_counterpart_are_told() -> None:
    migration = migrate_text(
        "from accelerate import Accelerator\n"
        "from pytorch_accelerated.trainer import Trainer\n"
        "from pytorch_accelerated.utils import worker_init_fn\n\n"
        "class Mine(Trainer):\n"
        "    def _create_accelerator(self):\n"
        "        return Accelerator(mixed_precision='fp16')\n"
    )
    found = told(migration)
    assert "arguments of treadle.Trainer" in found[1]
    assert found[3].startswith("pytorch_accelerated.utils.worker_init_fn has no counterpart; instead: Nothing")
    assert "precision='bf16' or 'fp16'" in found[6]
    assert "from accelerate import Accelerator" in migration.after


def test_a_name_that_the_file_has_already_is_not_taken_twice() -> None:
    migration = migrate_text(
        "import pytorch_accelerated.callbacks as cb\n\n"
        "class TerminateOnNaNCallback:\n    pass\n\n"
        "chosen = [cb.TerminateOnNaNCallback, cb.EarlyStoppingCallback]\n"
    )
    assert "TerminateOnNaNCallback as treadle_TerminateOnNaNCallback" in migration.after
    assert "chosen = [treadle_TerminateOnNaNCallback, EarlyStoppingCallback]\n" in migration.after


def test_imports_inside_functions_and_beside_other_modules_are_changed() -> None:
    migration = migrate_text(
        "import os, pytorch_accelerated\n\n"
        "def make():\n    from pytorch_accelerated import Trainer\n    return Trainer, pytorch_accelerated.Trainer\n"
    )
    assert "import os\nfrom treadle import Trainer\n" in migration.after
    assert "    return Trainer, Trainer\n" in migration.after
    names: dict[str, object] = {}
    exec(migration.after, names)  # noqa: S102 - to run it is what the test is for


def test_a_name_may_be_imported_from_a_module_of_theirs_that_had_only_imported_it_itself() -> None:
    migration = migrate_text(
        "from pytorch_accelerated.trainer import Trainer, TrainerRunConfig, InMemoryRunHistory\n"
        "import pytorch_accelerated.trainer as trainer\n\n"
        "print(Trainer, TrainerRunConfig, InMemoryRunHistory, trainer.CallbackHandler, trainer.Unheard)\n"
    )
    assert "from treadle.loop.run_config import TrainerRunConfig\n" in migration.after
    assert "from treadle.events import InMemoryRunHistory\n" in migration.after
    assert "from treadle.callback import CallbackHandler\n" in migration.after
    assert [note.text for note in migration.left] == ["pytorch_accelerated.trainer.Unheard has no counterpart"]


def test_text_before_an_edit_may_have_any_letters() -> None:
    migration = migrate_text(
        "# Größe, 大きさ\nimport nni.retiarii.nn.pytorch as nn\n\n"
        "x = ['größe', nn.LayerChoice([nn.Linear(1, 1)])]  # ü\n"
    )
    assert migration.after.splitlines()[-1] == "x = ['größe', LayerChoice([nn.Linear(1, 1)])]  # ü"


def test_choices_of_nni_3_are_turned_around_and_layers_with_them_are_built() -> None:
    migration = migrate_text(
        "import nni\nfrom nni.nas.nn.pytorch import LayerChoice, ModelSpace, MutableConv2d\n\n"
        "class Net(ModelSpace):\n    def __init__(self):\n        super().__init__()\n"
        "        width = nni.choice('width', [4, 8])\n"
        "        self.first = MutableConv2d(1, width * 2, 3)\n"
        "        self.second = LayerChoice([MutableConv2d(1, 1, nni.choice('kernel', [3, 5]))])\n"
    )
    lines = migration.after.splitlines()
    assert "        width = ValueChoice([4, 8], label='width')" in lines
    assert "        self.first = Built(nn.Conv2d, 1, width * 2, 3)" in lines
    assert "        self.second = LayerChoice([Built(nn.Conv2d, 1, 1, ValueChoice([3, 5], label='kernel'))])" in lines
    names: dict[str, object] = {}
    exec(migration.after + "\nnet = Net()\n", names)  # noqa: S102 - to run it is what the test is for


def test_experiments_of_nni_are_left_to_do() -> None:
    migration = migrate_text(
        "import nni\nfrom nni.retiarii.experiment.pytorch import RetiariiExperiment\n\n"
        "params = nni.get_next_parameter()\nnni.report_final_result(0.5)\n"
    )
    assert "treadle.nas.Search" in told(migration)[2]
    assert "treadle.nas.Search" in told(migration)[4]
    assert migration.after.endswith("report_final_result(0.5)\n")


def test_keys_of_a_lazy_config_that_are_not_known_are_told_and_those_of_detectron2_renamed() -> None:
    migration = migrate_text(
        "from detectron2.config import LazyCall as L\nfrom libai.config import get_config\n\n"
        "train = get_config('common/train.py').train\n"
        "train.max_iter = 100\ntrain.device = 'cpu'\ntrain.log_perid = 5\n"
        "train.update(max_iter=50)\n"
        "gpt = get_config('common/models/gpt.py').pretrain_model\n"
    )
    lines = migration.after.splitlines()
    assert "train.train_iter = 100" in lines
    assert "train.dist.device_type = 'cpu'" in lines
    assert "train.update(train_iter=50)" in lines
    found = told(migration)
    assert found[7] == "train.log_perid is not known; did you mean 'log_period'?"
    assert found[9].startswith("'common/models/gpt.py' is a config of LiBai's")


def test_keys_that_a_lazy_config_gives_all_at_once_are_renamed_too() -> None:
    migration = migrate_text(
        "from detectron2.config import LazyCall as L\n\ntrain = dict(max_iter=100, output_dir='x', device='cpu')\n"
    )
    assert migration.after.endswith("train = dict(train_iter=100, output_dir='x', device='cpu')\n")
    assert told(migration) == {3: "train.device is not known; it is train.dist.device_type here"}


def test_a_grid_that_lies_elsewhere_is_told() -> None:
    space = '{"on": {"_type": "quniform", "_value": [2, 8, 2]}, "off": {"_type": "quniform", "_value": [1, 9, 2]}}'
    (note,) = migrate_text(space, "space.json").notes
    assert note.text == "off: the values were multiples of 2; here they are 1 and steps of 2 from it"
    assert not note.left


def test_words_of_oneflow_for_places_are_told() -> None:
    migration = migrate_text(
        "import oneflow as flow\nfrom libai.layers import Linear\n\n"
        "x = flow.zeros(2).to_global(sbp=flow.sbp.broadcast)\n"
    )
    found = told(migration)
    assert found[2] == "libai.layers.Linear has no counterpart"
    assert 4 in found


def test_what_a_lightning_module_does_by_itself_is_told() -> None:
    migration = migrate_text(
        "import pytorch_lightning as pl\nfrom pytorch_lightning.loggers import WandbLogger\n\n"
        "class Gan(pl.LightningModule):\n    def __init__(self):\n        super().__init__()\n"
        "        self.automatic_optimization = False\n\n"
        "    def training_step(self, batch, batch_idx):\n        print(self.global_step)\n"
        "        self.manual_backward(batch, retain_graph=True)\n\n"
        "    def validation_epoch_end(self, outputs):\n        pass\n\n"
        "class Log(pl.Callback):\n    pass\n\n"
        "trainer = pl.Trainer(max_steps=3, profiler='simple', val_check_interval=0.25, precision='64-true')\n"
        "trainer.fit(Gan(), ckpt_path='a.ckpt')\nprint(trainer.callback_metrics)\n"
        "Gan.load_from_checkpoint('a.ckpt')\n"
    )
    found = told(migration)
    assert "instead: treadle.writers.WandbWriter" in found[2]
    counted = "a step is a call of training_step; Lightning counts the steps of every optimizer"
    assert [note.line for note in migration.notes if counted in note.text and not note.left] == [10]
    assert found[11].startswith("manual_backward takes the loss alone")
    assert found[13].startswith("validation_epoch_end is not called; instead: on_validation_epoch_end")
    assert found[16].startswith("Log: events have other names")
    line = [note.text for note in migration.left if note.line == 19]
    assert [text.split("=")[0] for text in sorted(line)[1:]] == ["precision", "profiler", "val_check_interval"]
    assert counted in min(line)
    assert found[20].startswith("ckpt_path= is left out")
    assert "trainer = StepTrainer(max_steps=3)\n" in migration.after
    assert "trainer.fit(Gan())\n" in migration.after
    assert "history" in found[21]
    assert "'treadle import'" in found[22]


def test_lightnings_defaults_are_written_out_and_a_resumed_fit_goes_on() -> None:
    migration = migrate_text(
        "from lightning.pytorch import Trainer\nfrom lightning.pytorch.callbacks import EarlyStopping\n\n"
        "trainer = Trainer(callbacks=[EarlyStopping(monitor='val_acc', mode='max')], gradient_clip_val=0.5,\n"
        "                  gradient_clip_algorithm='value', check_val_every_n_epoch=2)\n"
        "trainer.fit(model, loader, ckpt_path='last')\n"
    )
    text = migration.after
    assert "EarlyStoppingCallback(watch_metric='val_acc', greater_is_better=True, early_stopping_patience=3, " in text
    assert "early_stopping_threshold=0.0)" in text
    assert "gradient_clip_value=0.5" in text
    assert 'eval_every="2 epochs", num_epochs=1000)' in text
    assert 'trainer.fit(model, loader, resume="auto")\n' in text


def test_a_module_that_has_its_loaders_itself_needs_no_others() -> None:
    migration = migrate_text(
        "import lightning as L\nimport torch\nfrom torch.utils.data import DataLoader, TensorDataset\n\n"
        "class Own(L.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(1, 1)\n\n"
        "    def training_step(self, batch, batch_idx):\n        return self.layer(batch[0]).mean()\n\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n\n"
        "    def train_dataloader(self):\n        return DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2)\n\n"
        "trainer = L.Trainer(max_steps=2, accelerator='cpu', enable_progress_bar=False)\nresult = trainer.fit(Own())\n"
    )
    names: dict[str, object] = {}
    exec(migration.after, names)  # noqa: S102 - to run it is what the test is for
    assert names["result"].steps == 2  # type: ignore[attr-defined]


def test_a_tag_that_runs_code_in_settings_is_told() -> None:
    migration = migrate_text("epochs: 3\nlearner: !!python/name:torch.optim.Adam\nnproc: 2\n", "settings.yaml")
    assert told(migration) == {
        2: "python/name:torch.optim.Adam runs code when it is read; write the value itself",
        3: "nproc: start the program with torchrun, or pass nproc to run()",
    }
    assert not migration.changed


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.py",
            "import torch\n",
            "a.py has no loop with a backward pass, and imports none of the systems that are known: pytorch-acc",
        ),
        ("a.py", "import lightning as\n", "a.py, line 1, is no Python"),
        ("a.yaml", "a: [1\n", "a.yaml is no YAML, line 2: expected"),
        ("a.yaml", "- 1\n", "a.yaml holds no settings by name"),
        ("a.yaml", "colour: red\n", "a.yaml holds none of RecBole's settings"),
        ("a.json", "{}\n", "a.json is neither a program"),
        ("a.json", "{\n", "a.json, line 2, is no JSON: Expecting property name"),
        ("a.txt", "", "a.txt is neither a program"),
    ],
)
def test_what_is_of_no_system_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        migrate_text(text, name)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"none.py cannot be read"):
        migrate(Path("none.py"))
