"""Programs of users of other systems are changed, and then run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.interrupting import assert_same_bits
from tests.tools.migrate.conftest import Copied, migrate_text, run_migrated
from treadle.config import LazyConfig
from treadle.engine import DefaultTrainer
from treadle.nas import freeze
from treadle.tools.migrate import migrate


def test_a_program_for_pytorch_accelerated_runs_and_keeps_its_comments(
    copied: Copied, capsys: pytest.CaptureFixture[str]
) -> None:
    migration = migrate(copied("pytorch_accelerated_program.txt"))
    assert (migration.system, migration.left) == ("pytorch-accelerated", [])
    assert "pytorch_accelerated" not in migration.after
    assert "# This comment stays where it is.\n" in migration.after
    assert "# ends a run that does not get better\n" in migration.after
    count, accuracy = run_migrated(migration)["result"]
    # 64 samples in batches of 16, twice.
    assert count == 8
    assert 0.0 <= accuracy <= 1.0
    assert "accuracy" in capsys.readouterr().out


def test_only_the_lines_that_must_change_do(copied: Copied) -> None:
    migration = migrate(copied("pytorch_accelerated_program.txt"))
    assert "import lightning" not in migration.after
    changed = [line for line in migration.diff().splitlines() if line.startswith("-") and not line.startswith("---")]
    assert [line for line in changed if "pytorch_accelerated" not in line and "pa_callbacks" not in line] == [
        "-    EarlyStoppingCallback,  # ends a run that does not get better",
        "-    PrintMetricsCallback,",
        "-    TrainerCallback,",
    ]


def test_a_lightning_program_becomes_one_of_steps_and_learns(copied: Copied) -> None:
    migration = migrate(copied("lightning_program.txt"))
    assert migration.left == []
    assert "lightning" not in migration.after.replace("trained by Lightning", "").replace("treadle.lightning", "")
    names = run_migrated(migration)
    core = names["trainer"].core
    # Two updates an epoch: four batches of 16, accumulated in pairs.
    assert (core.progress.epoch, core.progress.step) == (4, 8)
    assert len(core.run_history.get_metric_values("val_acc")) == 4
    losses = core.run_history.get_metric_values("val_loss")
    assert losses[-1] < losses[0]
    # A cosine over four epochs ends at nothing.
    assert core.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)
    assert (core.settings.clip_norm, core.settings.gradient_accumulation_steps, core.seed) == (1.0, 2, 7)
    assert names["model"].hparams == {"width": 16, "lr": 0.05}
    assert Path("best_model.pt").is_file()


def test_a_migrated_lightning_program_ends_with_the_bits_of_a_loop_that_is_written_out(copied: Copied) -> None:
    path = copied("lightning_program.txt")
    text = path.read_text().replace("shuffle=True", "shuffle=False")
    path.write_text(text)
    names = run_migrated(migrate(path))
    torch.manual_seed(7)
    layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    points = torch.randn(64, 2, generator=torch.Generator().manual_seed(1))
    labels = (points.sum(dim=1) > 0).long()
    for _ in range(4):
        for start in (0, 32):
            optimizer.zero_grad()
            for first in (start, start + 16):
                rows = slice(first, first + 16)
                (nn.functional.cross_entropy(layers(points[rows]), labels[rows]) * 0.5).backward()
            nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
            optimizer.step()
        schedule.step()
    for own, wanted in zip(names["model"].layers.parameters(), layers.parameters(), strict=True):
        assert torch.allclose(own, wanted, rtol=1e-5, atol=1e-7)


LOGGED = "        self.logger.experiment"


def test_a_gan_that_makes_its_updates_itself_is_turned_but_for_its_logger(copied: Copied) -> None:
    migration = migrate(copied("lightning_gan.txt"))
    lines = migration.before.splitlines()
    (left,) = migration.left
    assert lines[left.line - 1].startswith(LOGGED)
    assert "self.logger has no counterpart" in left.text
    assert any("Lightning counts the steps of every optimizer" in note.text for note in migration.notes)
    assert "lightning.pytorch" not in migration.after
    assert "from treadle.lightning import StepModel, StepTrainer\n" in migration.after
    assert "class PointsDataModule:\n" in migration.after
    assert 'run_dir="gan"' in migration.after
    assert "callbacks=[LimitBatchesCallback(2)]" in migration.after
    assert "limit_train_batches" not in migration.after
    # What the module does itself stays as it is.
    step = migration.before.partition("    def training_step")[2].partition("    def validation_step")[0]
    assert step in migration.after


def test_a_migrated_gan_ends_with_the_bits_of_a_loop_that_is_written_out(copied: Copied) -> None:
    path = copied("lightning_gan.txt")
    kept = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith(LOGGED)]
    started = "    def on_train_start(self):\n        self.random_state = torch.get_rng_state()\n\n"
    path.write_text("".join(kept).replace("    def validation_step", f"{started}    def validation_step"))
    migration = migrate(path)
    assert migration.left == []
    torch.manual_seed(3)
    names = run_migrated(migration)
    # Two batches of each of five epochs; the schedule of turns is the module's.
    assert names["trainer"].core.progress.step == 10
    torch.manual_seed(3)
    generator, judge = names["Generator"](4), names["Discriminator"]()
    torch.randn(8, 4)
    # On the CPU, too, the trainer has Adam work in one kernel.
    first = torch.optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999), fused=True)
    second = torch.optim.Adam(judge.parameters(), lr=0.0002, fused=True)
    batches = [batch[0] for batch in names["dm"].train_dataloader()][:2]
    torch.set_rng_state(names["model"].random_state)
    for points in batches * 5:
        z, ones = torch.randn(len(points), 4), torch.ones(len(points), 1)
        generator(z)
        nn.functional.binary_cross_entropy(judge(generator(z)), ones).backward()
        first.step()
        generator.zero_grad()
        judge.zero_grad()
        real = nn.functional.binary_cross_entropy(judge(points), ones)
        fake = nn.functional.binary_cross_entropy(judge(generator(z).detach()), torch.zeros(len(points), 1))
        ((real + fake) / 2).backward()
        second.step()
        judge.zero_grad()
    assert_same_bits(names["model"].generator.state_dict(), generator.state_dict())
    assert_same_bits(names["model"].discriminator.state_dict(), judge.state_dict())


@pytest.mark.parametrize(
    "line",
    [
        "from lightning.pytorch.core.module import LightningModule",
        "from lightning.pytorch.core import LightningModule",
        "from lightning.pytorch import LightningModule",
        "from lightning import LightningModule",
        "from pytorch_lightning.core import LightningModule",
        "from pytorch_lightning.core.lightning import LightningModule",
        "from pytorch_lightning import LightningModule",
    ],
)
def test_a_module_is_found_wherever_lightning_has_it(line: str, copied: Copied) -> None:
    migration = migrate_text(f"{line}\n\n\nclass Mine(LightningModule):\n    pass\n")
    assert (migration.left, migration.after) == (
        [],
        "from treadle.lightning import StepModel\n\n\nclass Mine(StepModel):\n    pass\n",
    )


@pytest.mark.parametrize(
    ("arguments", "expected", "left"),
    [
        ("limit_train_batches=3, limit_val_batches=3", "callbacks=[LimitBatchesCallback(3)]", 0),
        ("limit_train_batches=3, limit_val_batches=3, callbacks=[one]", "callbacks=[one, LimitBatchesCallback(3)]", 0),
        ("limit_train_batches=1.0, limit_val_batches=None", "StepTrainer(num_epochs=2)", 0),
        ("limit_train_batches=0.1", "StepTrainer(num_epochs=2)", 1),
        ("limit_train_batches=3, limit_test_batches=5", "StepTrainer(num_epochs=2)", 2),
        ("limit_val_batches=0", "StepTrainer(num_epochs=2)", 1),
        ("default_root_dir='here'", "StepTrainer(num_epochs=2, run_dir='here')", 0),
    ],
)
def test_limits_of_batches_are_a_callback_or_told(arguments: str, expected: str, left: int, copied: Copied) -> None:
    head = "from mine import one\nfrom pytorch_lightning.trainer import Trainer\n"
    migration = migrate_text(f"{head}trainer = Trainer(max_epochs=2, {arguments})\n")
    assert expected in migration.after
    assert [("Subset" in note.text, note.line) for note in migration.left] == [(True, 3)] * left


POINTS = """
import torch
from torch import nn
from torch.utils.data import Dataset


class Points(Dataset):
    def __init__(self, count, seed):
        self.points = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
        self.labels = (self.points.sum(dim=1) > 0).long()

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return {"points": self.points[index], "labels": self.labels[index]}


class Network(nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.first, self.second, self.act = nn.Linear(2, width), nn.Linear(width, 2), act

    def forward(self, points, labels):
        scores = self.second(self.act(self.first(points)))
        if not self.training:
            return {"prediction_scores": scores}
        return {"loss": nn.functional.cross_entropy(scores, labels)}
"""


def test_a_lazy_config_of_libai_trains(copied: Copied) -> None:
    Path("points_of_mine.py").write_text(POINTS)
    migration = migrate(copied("libai_config.txt"))
    assert (migration.system, migration.left) == ("LiBai", [])
    assert "    lr=0.05,  # large, for a small model\n" in migration.after
    migration.path.write_text(migration.after)
    trainer = DefaultTrainer(LazyConfig.load(migration.path))
    results = trainer.train()
    assert trainer.iter == 6
    assert set(results) == {"Acc@1"}
    assert Path("runs/points/config.yaml").is_file()


def test_a_space_of_nni_is_searched_and_what_was_found_is_built(
    copied: Copied, capsys: pytest.CaptureFixture[str]
) -> None:
    migration = migrate(copied("nni_space.txt"))
    assert (migration.system, migration.left) == ("NNI", [])
    assert "nni" not in migration.after
    names = run_migrated(migration)
    found = names["found"]
    assert set(found) == {"hidden", "first", "second", "inputs"}
    assert "best architecture" in capsys.readouterr().out
    network = freeze(names["Net"](), found)
    assert network(torch.zeros(3, 2)).shape == (3, 2)


def make_ratings(folder: Path) -> None:
    """Write the ratings of 12 users of 10 items, four fifths of all pairs."""
    folder.mkdir(parents=True)
    pairs = [(user, item) for user in range(12) for item in range(10) if (user * 3 + item) % 5]
    rows = [f"u{user}\ti{item}\t{2 + (user + item) % 4}" for user, item in pairs]
    (folder / "tiny.inter").write_text("user_id:token\titem_id:token\trating:float\n" + "\n".join(rows) + "\n")


def test_a_program_for_recbole_with_old_settings_trains(copied: Copied, capsys: pytest.CaptureFixture[str]) -> None:
    make_ratings(Path("dataset/tiny"))
    settings = migrate(copied("recbole_settings.yaml"))
    assert settings.left == []
    Path("settings.yaml").write_text(settings.after)
    migration = migrate(copied("recbole_program.txt"))
    assert (migration.system, migration.left) == ("RecBole", [])
    names = run_migrated(migration)
    assert set(names["result"]) == {"recall@5", "ndcg@5"}
    assert "best valid" in capsys.readouterr().out


def test_settings_of_old_versions_of_recbole_are_written_as_they_are_now(copied: Copied) -> None:
    import yaml

    migration = migrate(copied("recbole_settings.yaml"))
    settings: dict[str, Any] = yaml.safe_load(migration.after)
    assert settings["eval_args"] == {
        "split": {"RS": [0.6, 0.2, 0.2]},
        "group_by": "user",
        "order": "RO",
        "mode": "full",
    }
    assert settings["train_neg_sample_args"] == {"distribution": "uniform", "sample_num": 1}
    assert settings["user_inter_num_interval"] == "[2,inf)"
    assert settings["val_interval"] == {"rating": "[2,inf)"}
    assert "real_time_process" not in settings
    assert "# who has rated less is left out\n" in migration.after
    assert "\n# evaluation\neval_args:\n" in migration.after
    assert [(note.line, note.left) for note in migration.notes] == [(26, False)]


def test_a_search_space_of_nni_becomes_the_search_of_a_config(copied: Copied) -> None:
    import yaml

    from treadle.search.space.domains import parse_domain

    migration = migrate(copied("nni_search_space.json"))
    assert migration.target == Path("nni_search_space.yaml")
    domains = {name: parse_domain(text) for name, text in yaml.safe_load(migration.after)["search"]["choices"].items()}
    assert domains["batch_size"].values == (16, 32, 64)
    assert (domains["layers"].low, domains["layers"].high) == (1, 4)
    assert (domains["lr"].low, domains["lr"].high, domains["lr"].log) == (0.0001, 0.1, True)
    assert domains["dropout"].step == 0.1
    assert [(note.line, note.text) for note in migration.left] == [
        (6, "noise: normal has no counterpart; use uniform, log, int or one_of")
    ]
    assert json.loads(migration.before)["noise"]["_type"] == "normal"
