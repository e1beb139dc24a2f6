"""The configs of the examples train, go on exactly where they were stopped, and learn something."""

import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.examples.parts import EXAMPLES, load, real
from tests.forking import starting
from tests.interrupting import metric_lines
from treadle.config import LazyConfig
from treadle.engine import DefaultTrainer, GraphTrainer, default_argument_parser, default_setup, hooks

TEXT = (
    "model.vocabulary_size=26",
    "model.context=16",
    "model.layers=2",
    "model.width=32",
    "model.dropout=0.1",
    "train.train_iter=30",
)
IMAGES = (
    "held_out=40",
    "model.layers=2",
    "model.width=32",
    "model.dropout=0.1",
    "dataloader.train.shift=1",
    "dataloader.train.flip=true",
    "train.train_epoch=3",
    "train.train_micro_batch_size=12",
    "train.checkpointer.save_model_after_n_epoch=null",
)
SHORT = ("train.log_period=1", "train.checkpointer.period=7", "train.checkpointer.max_to_keep=100")

Make = Callable[..., Any]


@pytest.fixture(params=["text", "images"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A function that returns a small config of an example, on small data."""
    name, overrides = {
        "text": ("language_model/gpt_char_small.py", TEXT),
        "images": ("vision/vit_fashion_small.py", IMAGES),
    }[request.param]
    folder = request.getfixturevalue({"text": "text_folder", "images": "image_folder"}[request.param])

    def make(run: str, *more: str) -> Any:
        return load(name, *overrides, *SHORT, f"folder={folder}", f"train.output_dir={tmp_path / run}", *more)

    return make


def weights(trainer: DefaultTrainer) -> list[torch.Tensor]:
    return [value.clone() for value in trainer.model.state_dict().values()]


class Interrupted(Exception):  # noqa: N818 - it is no error
    """Stands for whatever ends a process."""


def test_a_run_that_was_killed_and_resumed_ends_as_one_that_was_not(made: Make, tmp_path: Path) -> None:
    whole = DefaultTrainer(made("whole"))
    results = whole.train()

    def die(trainer: Any) -> None:
        if trainer.iter == 18:
            raise Interrupted

    part = DefaultTrainer(made("part"))
    part.register_hooks([hooks.CallbackHook(after_step=die)])
    with pytest.raises(Interrupted):
        part.train()
    resumed = DefaultTrainer(made("part", "train.resume=auto"))
    assert resumed.start_iter == 14
    assert resumed.train() == results
    assert all(torch.equal(own, other) for own, other in zip(weights(resumed), weights(whole), strict=True))
    assert metric_lines(tmp_path / "part", "metrics.json") == metric_lines(tmp_path / "whole", "metrics.json")


def test_a_run_that_was_told_to_leave_and_resumed_ends_as_one_that_was_not(made: Make) -> None:
    whole = DefaultTrainer(made("whole"))
    whole.train()
    part = DefaultTrainer(made("part"))
    leave = hooks.CallbackHook(after_step=lambda own: signal.raise_signal(signal.SIGTERM) if own.iter == 9 else None)
    part.register_hooks([leave])
    with pytest.raises(SystemExit):
        part.train()
    resumed = DefaultTrainer(made("part", "train.resume=auto"))
    assert 10 <= resumed.start_iter <= 11
    resumed.train()
    assert all(torch.equal(own, other) for own, other in zip(weights(resumed), weights(whole), strict=True))


def test_the_saved_config_builds_the_same_run(made: Make, tmp_path: Path) -> None:
    first = DefaultTrainer(made("first"))
    first.train()
    saved = LazyConfig.load(tmp_path / "first" / "config.yaml")
    saved.train.output_dir = str(tmp_path / "second")
    second = DefaultTrainer(saved)
    second.train()
    assert all(torch.equal(own, other) for own, other in zip(weights(second), weights(first), strict=True))


def test_a_fast_dev_run_evaluates_twice(made: Make, tmp_path: Path) -> None:
    config = made("fast")
    default_setup(config, default_argument_parser().parse_args(["--fast-dev-run"]))
    DefaultTrainer(config).train()
    metric = config.train.evaluation.eval_metric
    assert [line["iteration"] for line in metric_lines(tmp_path / "fast", "metrics.json") if metric in line] == [9, 20]


def test_blocks_are_found_for_recomputing_and_change_nothing(made: Make) -> None:
    plain = DefaultTrainer(made("plain", "model.dropout=0.0", "train.train_iter=3", "train.train_epoch=0"))
    again = DefaultTrainer(
        made(
            "again",
            "model.dropout=0.0",
            "train.train_iter=3",
            "train.train_epoch=0",
            "train.activation_checkpoint.enabled=true",
        )
    )
    for trainer in (plain, again):
        trainer.train()
    assert all(
        "forward" in vars(block) for name, block in again.model.named_modules() if type(block).__name__ == "Block"
    )
    assert all(torch.equal(own, other) for own, other in zip(weights(plain), weights(again), strict=True))


def test_graph_mode_gives_the_same_losses(made: Make, tmp_path: Path) -> None:
    short = ("train.train_iter=4", "train.train_epoch=0", "model.dropout=0.0", "train.evaluation.enabled=false")
    DefaultTrainer(made("eager", *short)).train()
    compiled = DefaultTrainer(made("graph", *short, "train.execution=compile", "+graph.backend=aot_eager"))
    assert isinstance(compiled._trainer, GraphTrainer)
    compiled.train()
    eager, graph = (
        [line["total_loss"] for line in metric_lines(tmp_path / name, "metrics.json")] for name in ("eager", "graph")
    )
    assert graph == pytest.approx(eager, rel=1e-4)


@pytest.mark.parametrize("name", ["language_model/gpt_char.py", "vision/vit_fashion.py"])
def test_the_full_setting_is_complete_and_checked(name: str) -> None:
    config = load(name)
    LazyConfig.check(config)
    assert config.train.amp.enabled
    assert config.train.execution == "compile"


def test_the_full_setting_of_the_characters_is_the_published_one(text_folder: Path, tmp_path: Path) -> None:
    config = load(
        "language_model/gpt_char.py",
        f"folder={text_folder}",
        f"train.output_dir={tmp_path / 'run'}",
        "train.execution=eager",
        "train.dist.device_type=cpu",
    )
    trainer = DefaultTrainer(config)
    train = trainer.cfg.train
    assert trainer.model.count_parameters(positions=False) == 10_646_784
    assert (train.train_iter, train.global_batch_size, trainer.model.context) == (5000, 64, 256)
    assert {module.p for module in trainer.model.modules() if isinstance(module, torch.nn.Dropout)} == {0.2}
    decayed, rest = trainer.optimizer.param_groups
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert {parameter.dim() for parameter in decayed["params"]} == {2}
    assert {parameter.dim() for parameter in rest["params"]} == {1}
    assert (decayed["betas"], decayed["clip_grad_max_norm"]) == ((0.9, 0.99), 1.0)
    schedule = trainer.lr_scheduler
    assert schedule.value(0, 1e-3) == pytest.approx(1e-5)
    assert schedule.value(100, 1e-3) == pytest.approx(1e-3, rel=1e-2)
    assert schedule.value(5000, 1e-3) == pytest.approx(1e-4)


@pytest.mark.slow
def test_the_characters_are_learned_and_a_trained_model_writes(text_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = load(
        "language_model/gpt_char_small.py",
        *TEXT,
        "model.dropout=0.0",
        "train.train_iter=300",
        f"folder={text_folder}",
        f"train.output_dir={run}",
    )
    results = DefaultTrainer(config).train()
    # The text says one sentence again and again: far below log 26 = 3.26, what a model that knows nothing has.
    assert results["val_loss"] < 1.5
    assert results["val_perplexity"] == pytest.approx(math.exp(results["val_loss"]))
    program = str(EXAMPLES / "language_model" / "sample.py")
    done = starting.run(program, str(run), "--prompt", "the q", "--characters", "60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the q")
    assert len(done.stdout) == 5 + 60 + 1
    assert "quick" in done.stdout


@pytest.mark.slow
def test_images_are_told_apart(image_folder: Path, tmp_path: Path) -> None:
    config = load(
        "vision/vit_fashion_small.py",
        *IMAGES,
        "dataloader.train.shift=0",
        "model.dropout=0.0",
        "train.train_epoch=40",
        f"folder={image_folder}",
        f"train.output_dir={tmp_path / 'run'}",
    )
    results = DefaultTrainer(config).train()
    assert set(results) == {"validation", "test"}
    assert results["test"]["Acc@1"] > 80


@pytest.mark.slow
def test_the_real_text_is_learned_better_than_pairs_of_characters_say(tmp_path: Path) -> None:
    real("tinyshakespeare")
    config = load(
        "language_model/gpt_char_small.py",
        "train.train_iter=300",
        "train.evaluation.eval_period=0",
        "train.evaluation.eval_iter=8",
        f"train.output_dir={tmp_path}",
    )
    results = DefaultTrainer(config).train()
    # What one character says of the next is worth 2.4849 nats (and its frequency alone 3.3473).
    assert results["val_loss"] < 2.4849
