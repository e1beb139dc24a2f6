"""`Checkpointer` outside of `DefaultTrainer`: with a trainer of your own, and in a loop of your own."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.parts import Classifier, Points, make_config
from treadle.checkpoint import CheckpointStore
from treadle.config import ConfigDict, LazyCall, LazyConfig, instantiate
from treadle.engine import Checkpointer, DefaultTrainer, EagerTrainer, HookBase, TrainerBase, dist, hooks
from treadle.errors import CheckpointError, ConfigError
from treadle.writers import JSONWriter

# A program in the manner of detectron2's lazyconfig_train_net ----------------------------------------------------


def lazy_config(folder: Path, max_iter: int) -> ConfigDict:
    return ConfigDict(
        {
            "model": LazyCall(Classifier)(dropout=0.5),
            "optimizer": LazyCall(torch.optim.SGD)(lr=0.1, momentum=0.9),
            "dataloader": {
                "train": LazyCall(torch.utils.data.DataLoader)(dataset=LazyCall(Points)(), batch_size=4, shuffle=True)
            },
            "lr_multiplier": LazyCall(torch.optim.lr_scheduler.StepLR)(step_size=3, gamma=0.5),
            "train": {
                "output_dir": str(folder),
                "init_checkpoint": "",
                "max_iter": max_iter,
                "eval_period": 4,
                "log_period": 1,
                "checkpointer": {"period": 3, "max_to_keep": 2},
            },
        }
    )


def do_test(cfg: Any, model: nn.Module) -> dict[str, float]:
    model.eval()
    data = Points(16, seed=1)
    with torch.no_grad():
        scores = model(data.points, data.labels)["prediction_scores"]
    model.train()
    return {"accuracy": float((scores.argmax(1) == data.labels).float().mean())}


def do_train(cfg: Any, *, resume: bool = False, stop_at: int | None = None) -> EagerTrainer:
    """Build everything, resume if asked to, train; stop dead before an iteration, as a kill does."""
    torch.manual_seed(7)
    model = instantiate(cfg.model)
    optimizer = instantiate(cfg.optimizer, params=list(model.parameters()))
    trainer = EagerTrainer(model, instantiate(cfg.dataloader.train), optimizer)
    checkpointer = Checkpointer(model, cfg.train.output_dir, trainer=trainer)
    trainer.register_hooks(
        [
            hooks.IterationTimer(),
            hooks.LRScheduler(scheduler=instantiate(cfg.lr_multiplier, optimizer=optimizer)),
            hooks.PeriodicCheckpointer(checkpointer, **cfg.train.checkpointer),
            hooks.EvalHook(cfg.train.eval_period, lambda: do_test(cfg, model)),
            hooks.PeriodicWriter([JSONWriter(Path(cfg.train.output_dir) / "metrics.json")], cfg.train.log_period)
            if dist.is_main_process()
            else None,
            StopDead(stop_at),
        ]
    )
    checkpointer.resume_or_load(cfg.train.init_checkpoint, resume=resume)
    start_iter = trainer.iter + 1 if resume and checkpointer.has_checkpoint() else 0
    trainer.train(start_iter, cfg.train.max_iter)
    return trainer


class StopDead(HookBase):
    """Fails before an iteration."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def before_step(self) -> None:
        if self.trainer.iter == self.at:
            raise KeyboardInterrupt


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def test_a_lazyconfig_program_trains_saves_and_resumes_exactly(tmp_path: Path) -> None:
    whole = do_train(lazy_config(tmp_path / "whole", 10))
    assert (tmp_path / "whole" / "checkpoints" / "model_final").is_file()
    with pytest.raises(KeyboardInterrupt):
        do_train(lazy_config(tmp_path / "cut", 10), stop_at=8)
    gone_on = do_train(lazy_config(tmp_path / "cut", 10), resume=True)
    assert gone_on.start_iter == 6, "it begins after the checkpoint of iteration 5"
    assert gone_on.iter == 10
    assert all(map(torch.equal, weights(whole.model), weights(gone_on.model)))
    assert whole.storage.history("lr").latest() == gone_on.storage.history("lr").latest() == 0.1 * 0.5**3
    checkpointer = Checkpointer(Classifier(), tmp_path / "whole")
    assert checkpointer.store.steps() == [9, 10], "so many are kept"


def test_a_run_that_was_interrupted_while_it_was_saved_goes_on_from_that_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same process, as in a notebook: the thread that writes goes on when the run is gone."""
    write = CheckpointStore.write

    def write_late(store: CheckpointStore, step: int, *arguments: Any) -> None:
        # As on a slow disk: the run is interrupted, and gone, before it is done.
        time.sleep(0.3 if step == 6 else 0)
        write(store, step, *arguments)

    monkeypatch.setattr(CheckpointStore, "write", write_late)
    with pytest.raises(KeyboardInterrupt):
        do_train(lazy_config(tmp_path, 10), stop_at=7)
    gone_on = do_train(lazy_config(tmp_path, 10), resume=True)
    assert (gone_on.start_iter, gone_on.iter) == (6, 10)


def test_a_second_start_that_does_not_resume_is_refused(tmp_path: Path) -> None:
    do_train(lazy_config(tmp_path, 3))
    with pytest.raises(CheckpointError) as caught:
        do_train(lazy_config(tmp_path, 6))
    assert str(caught.value) == (
        f"{tmp_path} already holds a run, at iteration 3; to resume it, call "
        "checkpointer.resume_or_load(resume=True) and train(trainer.iter + 1, ...), or choose another folder"
    )
    assert do_train(lazy_config(tmp_path, 6), resume=True).start_iter == 3


def test_a_run_begins_with_the_weights_of_another_by_name(tmp_path: Path) -> None:
    first = do_train(lazy_config(tmp_path / "first", 3))
    config = lazy_config(tmp_path / "tuned", 1)
    for name in ("model_final", "model_final.pth", "model_0000002"):
        config.train.init_checkpoint = str(tmp_path / "first" / name)
        fresh = Classifier()
        facts = Checkpointer(fresh, config.train.output_dir).resume_or_load(config.train.init_checkpoint, resume=True)
        assert facts["iteration"] == 2
        assert all(map(torch.equal, weights(fresh), weights(first.model)))


class Own(TrainerBase):
    """Has a step of its own and keeps its model under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Classifier()
        self.stepper = torch.optim.SGD(self.network.parameters(), lr=0.1)
        self.count = Count()

    def run_step(self) -> None:
        data = Points(8, seed=self.iter)
        self.network(data.points, data.labels)["losses"].backward()
        self.stepper.step()
        self.stepper.zero_grad()
        self.count.value += 1


class Count:
    """Something with a state."""

    value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_a_trainer_with_a_step_of_its_own_saves_what_the_checkpointer_was_given(tmp_path: Path) -> None:
    def start(folder: Path, end: int) -> Own:
        torch.manual_seed(3)
        trainer = Own()
        checkpointer = Checkpointer(
            trainer.network, folder, trainer=trainer, optimizer=trainer.stepper, count=trainer.count
        )
        trainer.register_hooks([hooks.PeriodicCheckpointer(checkpointer, 2)])
        checkpointer.resume_or_load(resume=True)
        trainer.train(trainer.iter + 1 if checkpointer.has_checkpoint() else 0, end)
        return trainer

    whole = start(tmp_path / "whole", 6)
    assert start(tmp_path / "cut", 4).count.value == 4
    gone_on = start(tmp_path / "cut", 6)
    assert (gone_on.start_iter, gone_on.count.value) == (4, 6)
    assert all(map(torch.equal, weights(whole.network), weights(gone_on.network)))


def test_a_checkpointer_of_another_folder_or_model_is_refused(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"this DefaultTrainer saves in '.*run' already; use its checkpointer"):
        Checkpointer(trainer.model, tmp_path / "other", trainer=trainer)
    model = Classifier()
    eager = EagerTrainer(model, [], torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="given another model than the EagerTrainer trains; give both the same"):
        Checkpointer(Classifier(), tmp_path, trainer=eager)


# A loop of your own --------------------------------------------------------------------------------------------


def own_loop(folder: Path, end: int, *, resume: bool = True) -> tuple[nn.Module, int]:
    """Train by hand, as detectron2's plain_train_net does; return the model and where the loop began."""
    torch.manual_seed(5)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    checkpointer = Checkpointer(model, folder, optimizer=optimizer, scheduler=schedule)
    start = checkpointer.resume_or_load(resume=resume).get("iteration", -1) + 1
    periodic = hooks.PeriodicCheckpointer(checkpointer, 2, max_iter=end)
    for iteration in range(start, end):
        data = Points(8, seed=iteration)
        model(data.points, data.labels)["losses"].backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        periodic.step(iteration)
    return model, start


def test_a_loop_of_ones_own_saves_and_goes_on_with_all_it_gave(tmp_path: Path) -> None:
    whole, _ = own_loop(tmp_path / "whole", 6)
    own_loop(tmp_path / "cut", 3)
    gone_on, start = own_loop(tmp_path / "cut", 6)
    assert start == 3
    assert all(map(torch.equal, weights(whole), weights(gone_on)))
    assert sorted(file.name for file in (tmp_path / "whole").iterdir()) == [
        "last_checkpoint",
        "model_0000001.safetensors",
        "model_0000003.safetensors",
        "model_0000005.safetensors",
        "model_final.safetensors",
    ]


def test_a_loop_of_ones_own_keeps_as_many_periodic_checkpoints_as_it_says(tmp_path: Path) -> None:
    Checkpointer(Classifier(), tmp_path).save("model_0000000")
    checkpointer = Checkpointer(Classifier(), tmp_path, max_to_keep=2)
    periodic = hooks.PeriodicCheckpointer(checkpointer, 2, max_iter=9)
    for iteration in range(9):
        periodic.step(iteration)
        if iteration == 1:
            checkpointer.save("model_best")
    assert sorted(file.name for file in tmp_path.glob("*.safetensors")) == [
        "model_0000000.safetensors",  # of another program
        "model_0000005.safetensors",
        "model_0000007.safetensors",
        "model_best.safetensors",
        "model_final.safetensors",
    ]
    with pytest.raises(ConfigError, match="max_to_keep=0 must be a whole number from 1 up, or None to keep all"):
        hooks.PeriodicCheckpointer(checkpointer, 2, max_to_keep=0)


def test_what_was_saved_under_a_name_is_loaded_by_it(tmp_path: Path) -> None:
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    checkpointer = Checkpointer(model, tmp_path, optimizer=optimizer)
    checkpointer.save("mine", epoch=4)
    before = weights(model)
    for path in ("mine", tmp_path / "mine", str(tmp_path / "mine.pth"), checkpointer.get_checkpoint_file()):
        nn.init.zeros_(model.head.weight)
        optimizer.param_groups[0]["lr"] = 9.0
        assert checkpointer.load(path) == {"epoch": 4}
        assert all(map(torch.equal, weights(model), before))
        assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.param_groups[0]["lr"] = 9.0
    checkpointer.load("mine", checkpointables=[])
    assert optimizer.param_groups[0]["lr"] == 9.0


def test_a_name_that_was_not_saved_lists_those_that_were(tmp_path: Path) -> None:
    checkpointer = Checkpointer(Classifier(), tmp_path)
    checkpointer.save("weights")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint wieghts: .* did you mean 'weights'\?"):
        checkpointer.load("wieghts")
    with pytest.raises(CheckpointError, match=r"has none of that name; it has \['weights'\]"):
        checkpointer.load(tmp_path / "best")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*; there is no folder .*elsewhere"):
        checkpointer.load(tmp_path / "elsewhere" / "model_final")
    with pytest.raises(ConfigError, match=r"checkpointables=\['optimzer'\]\): there is no 'optimzer'; it has \[\]"):
        checkpointer.load("weights", checkpointables=["optimzer"])


def test_a_state_that_a_file_does_not_hold_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Classifier()
    Checkpointer(model, tmp_path).save("bare")
    with caplog.at_level(logging.WARNING):
        Checkpointer(model, tmp_path, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).load("bare")
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'bare.safetensors'} holds no state of optimizer, which stays as it is"
    ]


def test_what_cannot_be_saved_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Checkpointer(Classifier(), tmp_path, max_to_kep=3)
    assert str(caught.value) == (
        "Checkpointer(max_to_kep=3): a int has no state_dict and load_state_dict; did you mean 'max_to_keep'?"
    )
    with pytest.raises(
        ConfigError, match=r"checkpointer.save\('a'\): there is no folder; give Checkpointer\(model, save"
    ):
        Checkpointer(Classifier()).save("a")
    trainer = DefaultTrainer(make_config(tmp_path, train_iter=1))
    trainer.train()
    with pytest.raises(
        ConfigError, match=r"save\('a', epoch=...\): the run of a trainer is saved with all that it knows"
    ):
        trainer.checkpointer.save("a", epoch=1)


def test_only_the_process_that_may_write_does(tmp_path: Path) -> None:
    Checkpointer(Classifier(), tmp_path / "a", save_to_disk=False).save("mine")
    assert not (tmp_path / "a").exists()


def test_weights_of_a_run_are_a_start_by_name(tmp_path: Path) -> None:
    first = DefaultTrainer(make_config(tmp_path / "first", train_iter=2))
    first.train()
    tuned = DefaultTrainer(make_config(tmp_path / "tuned", load_weight=str(tmp_path / "first" / "model_final")))
    assert tuned.start_iter == 0
    assert all(map(torch.equal, weights(tuned.model), weights(first.model)))
    first.checkpointer.save("afterwards")
    first.checkpointer.load("afterwards")


def test_a_saved_config_is_untouched_by_a_checkpointer(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path, train_iter=1))
    Checkpointer(trainer.model, tmp_path, trainer=trainer)
    trainer.train()
    assert LazyConfig.load(tmp_path / "config.yaml").train.train_iter == 1
