"""Programs that train with the Trainer of transformers: every argument has its place, and runs end as theirs do."""

import re
import runpy
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tools.migrate.conftest import Copied, migrate_text, run_migrated
from treadle.errors import ConfigError
from treadle.tools.migrate import Migration, migrate
from treadle.tools.migrate.transformers_arguments import ARGUMENTS, page_table

PAGE = Path(__file__).parents[3] / "docs" / "migrating-from-transformers.md"
HEAD = """
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from mine import data, model
"""


def test_every_argument_of_theirs_has_a_place() -> None:
    from transformers import TrainingArguments

    assert {field.name for field in fields(TrainingArguments)} == set(ARGUMENTS)
    assert page_table() in PAGE.read_text(encoding="utf-8")
    assert {one.kind for one in ARGUMENTS.values()} == {"turned", "idle", "left"}


def both(path: Path) -> tuple[Migration, dict[str, Any], dict[str, Any]]:
    """Run a program as it is, by their trainer, and then what it becomes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = runpy.run_path(str(path), run_name="__main__")
        migration = migrate(path)
        return migration, theirs, run_migrated(migration)


def furthest(theirs: Any, ours: Any) -> float:
    """Return how far apart any two weights are."""
    pairs = zip(theirs.model.state_dict().values(), ours.model.state_dict().values(), strict=True)
    return max((one - other).abs().max().item() for one, other in pairs)


@pytest.mark.slow
def test_a_classifier_ends_as_it_did_by_their_trainer(copied: Copied, capsys: pytest.CaptureFixture[str]) -> None:
    migration, theirs, ours = both(copied("transformers_classifier.txt"))
    assert (migration.system, migration.left) == ("transformers", [])
    assert "# How it is trained.\n" in migration.after
    assert "# one after the other\n" in migration.after
    losses = [entry["loss"] for entry in theirs["trainer"].state.log_history if "loss" in entry]
    found = [float(value) for value in ours["trainer"].storage.series("train_loss").values]
    assert len(losses) == 18
    # In fp32, by the same kernels in the same order.
    assert found == pytest.approx(losses, abs=1e-6)
    assert furthest(theirs["trainer"], ours["trainer"]) < 1e-6
    assert (ours["steps"], ours["losses"].steps) == (theirs["steps"], theirs["losses"].steps)
    assert (ours["accuracy"], ours["loss"]) == pytest.approx((theirs["accuracy"], theirs["loss"]), abs=1e-6)
    assert Path("saved/model.safetensors").exists()
    assert len(list(Path("classifier/checkpoints").glob("step_*"))) <= 3


@pytest.mark.slow
def test_a_language_model_ends_as_it_did_by_their_trainer(copied: Copied, capsys: pytest.CaptureFixture[str]) -> None:
    migration, theirs, ours = both(copied("transformers_language_model.txt"))
    assert migration.left == []
    assert ours["trainer"].progress.step == theirs["trainer"].state.global_step == 9
    # Adam makes more of rounding where gradients are near nothing.
    assert furthest(theirs["trainer"], ours["trainer"]) < 1e-4
    batch = ours["collate"]([ours["Texts"](8)[place] for place in range(8)])
    with torch.no_grad():
        losses = [one.model.eval()(**batch).loss.item() for one in (theirs["trainer"], ours["trainer"])]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert not Path("language_model").exists() or not list(Path("language_model").glob("checkpoint-*"))


def migrated(arguments: str, trainer: str = "", after: str = "trainer.train()\n", head: str = HEAD) -> Migration:
    text = f"""{head}
args = TrainingArguments("out", {arguments})
trainer = Trainer(model=model, args=args, train_dataset=data, eval_dataset=data, {trainer})
{after}"""
    return migrate_text(text)


@pytest.mark.parametrize(
    ("arguments", "trainer", "expected"),
    [
        ("bf16=True", "", 'precision="bf16"'),
        ("fp16=torch.cuda.is_available()", "", 'precision="fp16" if torch.cuda.is_available() else "fp32"'),
        ("tf32=True, torch_compile=True", "", 'matmul_precision="high", compile=True'),
        ("eval_strategy='steps', eval_steps=40, logging_steps=20", "", "eval_every=40,\n    log_every=20"),
        ("eval_strategy='steps', logging_steps=20", "", "eval_every=20"),
        ("num_train_epochs=2.0, lr_scheduler_type='constant'", "", "num_epochs=2"),
        ("max_steps=7", "", "steps=7"),
        ("save_strategy='best', metric_for_best_model='f1'", "", 'Policy(best="f1", greater_is_better=True)'),
        (
            "load_best_model_at_end=True",
            "",
            'SaveBestModelCallback(watch_metric="eval_loss_epoch", greater_is_better=False)',
        ),
        ("optim='sgd', learning_rate=0.1", "", "torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)"),
        ("adam_beta2=0.95, adam_epsilon=1e-6", "", "betas=(0.9, 0.95), eps=1e-6"),
        ("dataloader_num_workers=2", "", 'train_dataloader_kwargs={"num_workers": 2}'),
        ("gradient_checkpointing=True", "", "model.gradient_checkpointing_enable()\noptimizer ="),
        ("warmup_steps=100", "", '"linear", optimizer, 100, steps'),
        ("", "processing_class=data", "collate_fn=DataCollatorWithPadding(data)"),
        ("", "callbacks=[EarlyStoppingCallback]", "EarlyStoppingCallback(early_stopping_threshold=0.0, watch_metric="),
        ("", "optimizers=(torch.optim.SGD(model.parameters(), 0.1), None)", "Trainer(model, None, torch.optim.SGD("),
    ],
)
def test_an_argument_becomes_one_of_ours(arguments: str, trainer: str, expected: str, copied: Copied) -> None:
    migration = migrated(arguments, trainer)
    assert expected in migration.after
    assert migration.left == []
    assert "TrainingArguments" not in migration.after


def test_label_smoothing_of_a_classifier_is_a_loss_and_that_of_a_language_model_is_left(copied: Copied) -> None:
    classifier = migrated("label_smoothing_factor=0.1", head=HEAD + "import BertForSequenceClassification\n")
    assert "torch.nn.CrossEntropyLoss(label_smoothing=0.1)" in classifier.after
    assert classifier.left == []
    other = migrated("label_smoothing_factor=0.1", head=HEAD + "import GPTForCausalLM\n")
    assert ["labels of a language model are shifted" in note.text for note in other.left] == [True]


@pytest.mark.parametrize(
    ("arguments", "trainer", "after", "message"),
    [
        ("deepspeed='zero.json'", "", "", r"deepspeed: left out; instead: `parallel=Plan"),
        ("push_to_hub=True", "", "", r"push_to_hub: left out; instead: `model\.push_to_hub"),
        ("report_to='wandb'", "", "", "report_to: left out.*WritersCallback"),
        ("num_train_epochs=0.5", "", "", "a part of an epoch is not; pass max_steps="),
        ("optim='adafactor'", "", "", "build the optimizer yourself"),
        ("lr_scheduler_type='reduce_lr_on_plateau'", "", "", "ReduceLROnPlateau"),
        ("save_steps=0.1", "", "trainer.train()", "a share of the run is no interval"),
        ("no_cuda=True", "", "", "it is none of transformers 5"),
        ("", "compute_loss_func=data", "", "compute_loss_func: left out; instead: override calculate_train"),
        ("", "", "trainer.train('out/checkpoint-500')", "cannot be resumed from; from_pretrained reads"),
        ("", "", "trainer.predict(data)", r"trainer\.predict: predict\(dataset\) returns the model"),
        ("", "", "print(trainer.state.best_metric)", r"trainer\.state: trainer\.progress has step"),
        ("", "", "print(trainer.train().metrics)", "the result has no metrics: its history has"),
        ("", "", "print(args.output_dir)", "its arguments become those of Trainer and train"),
    ],
)
def test_what_is_left_is_told_and_never_done(
    arguments: str, trainer: str, after: str, message: str, copied: Copied
) -> None:
    migration = migrated(arguments, trainer, after or "trainer.train()\n")
    told = "\n".join(note.text for note in migration.left)
    assert migration.left
    assert re.search(message, told), told


def test_arguments_that_are_made_elsewhere_are_left_with_the_names_that_nobody_defines(copied: Copied) -> None:
    migration = migrate_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "from mine import data, model\n"
        "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "trainer = Trainer(model=model, args=args, train_dataset=data)\n"
        "trainer.train()\n"
    )
    assert {3, 4} <= {note.line for note in migration.left}
    assert any("HfArgumentParser has no counterpart; instead: a lazy config" in note.text for note in migration.left)


def test_methods_that_a_trainer_of_theirs_overrides_are_told(copied: Copied) -> None:
    migration = migrate_text(
        HEAD
        + "class Weighted(Trainer):\n    def compute_loss(self, model, inputs):\n        return 0\n"
        + "trainer = Weighted(model=model, args=TrainingArguments('out'), train_dataset=data)\ntrainer.train()\n"
    )
    assert [note.line for note in migration.left] == [6]
    assert "compute_loss is not called; instead: calculate_train_batch_loss" in migration.left[0].text
    assert "trainer = Weighted(model, None, optimizer, " in migration.after


CALLBACK = """
class Watching(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        print(state.epoch)

    def on_log(self, args, state, control, logs=None, **kwargs):
        print(logs)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if metrics["eval_loss"] < args.learning_rate:
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        print(state.best_metric)
"""


def test_events_of_a_callback_are_ours_and_what_is_read_in_them_is_told(copied: Copied) -> None:
    migration = migrate_text(HEAD + CALLBACK)
    assert (
        "def on_training_run_start(self, trainer, **kwargs):\n        print(trainer.progress.epoch)" in migration.after
    )
    assert "def on_log(self, trainer, scalars=None, **kwargs):\n        print(scalars)" in migration.after
    assert "def on_eval_epoch_end(self, trainer, **kwargs):" in migration.after
    told = {note.line: note.text for note in migration.left}
    assert "trainer.run_history has every metric by name" in told[14]
    assert "should_save: arguments of train say when" in told[15]
    assert "on_save has no counterpart" in told[17]


def test_a_program_with_their_models_and_another_loop_is_none_of_their_trainers(copied: Copied) -> None:
    with pytest.raises(ConfigError, match=r"no loop with a backward pass, and imports none of the systems"):
        migrate_text("from transformers import GPT2Config\nprint(GPT2Config())\n")
