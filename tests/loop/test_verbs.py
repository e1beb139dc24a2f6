"""Methods that nobody would call: misspelt verbs, other libraries' names, events in wrong places; and their like."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle import Trainer, TrainerCallback
from treadle.callback import EVENTS
from treadle.engine import EagerTrainer
from treadle.engine.evaluation import DatasetEvaluator
from treadle.errors import CallbackError, ConfigError, UnknownEventError
from treadle.lightning import StepModel, StepTrainer
from treadle.lightning.module import STEPS
from treadle.loop.verbs import TRAINER_VERBS, nearest
from treadle.recsys import Trainer as RecommenderTrainer
from treadle.recsys.models.abstract_recommender import GeneralRecommender


def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stands for a method of a user's."""


def define(parent: Any, name: str, **more: Any) -> type:
    """Return a subclass with a method of that name, as a program defines it."""
    return type("Own", (parent,), {name: nothing, "__module__": "program", **more})


MISSPELT = [
    (Trainer, "calculate_trian_batch_loss", "calculate_train_batch_loss"),
    (Trainer, "calculate_batch_train_loss", "calculate_train_batch_loss"),
    (Trainer, "calculate_train_batch_losses", "calculate_train_batch_loss"),
    (Trainer, "calculate_val_batch_loss", "calculate_eval_batch_loss"),
    (Trainer, "calculateTrainBatchLoss", "calculate_train_batch_loss"),
    (Trainer, "create_schedular", "create_scheduler"),
    (Trainer, "optimiser_step", "optimizer_step"),
    (Trainer, "train_epochs_end", "train_epoch_end"),
    (Trainer, "run_train_epoch", "_run_train_epoch"),
    (Trainer, "_run_traning", "_run_training"),
    (StepModel, "trainig_step", "training_step"),
    (StepModel, "on_train_epoch_ends", "on_train_epoch_end"),
    (StepModel, "configure_optimisers", "configure_optimizers"),
    (RecommenderTrainer, "_trian_epoch", "_train_epoch"),
    (GeneralRecommender, "caculate_loss", "calculate_loss"),
    (DatasetEvaluator, "rest", "reset"),
    (DatasetEvaluator, "proccess", "process"),
    (DatasetEvaluator, "evalute", "evaluate"),
    (GeneralRecommender, "full_sort_predicts", "full_sort_predict"),
]


@pytest.mark.parametrize(("parent", "name", "meant"), MISSPELT)
def test_a_method_that_is_nearly_one_that_is_called_is_refused(parent: Any, name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"Own\.{name} is called by nobody; did you mean '{meant}'\?"):
        define(parent, name)


@pytest.mark.parametrize(
    ("parent", "name", "said"),
    [
        (Trainer, "training_step", "define calculate_train_batch_loss"),
        (Trainer, "configure_optimizers", "pass optimizer= to the trainer"),
        (Trainer, "_create_accelerator", "pass precision='bf16' or 'fp16'"),
        (Trainer, "_prepare_model_optimizer_and_dataloaders", "override _prepare_model_and_optimizer"),
        (Trainer, "on_train_epoch_end", "the method of a trainer for this moment is 'train_epoch_end'"),
        (Trainer, "on_update_end", "events are for callbacks; write one with it"),
        (StepModel, "on_train_batch_end", "write a callback with on_update_end"),
        (StepModel, "validation_epoch_end", "define on_validation_epoch_end"),
        (StepModel, "optimizer_step", "override optimizer_step of a treadle.Trainer"),
    ],
)
def test_a_method_that_another_library_would_call_is_refused_with_ours(parent: Any, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"Own\.{name} is called by nobody: .*{said}"):
        define(parent, name)


@pytest.mark.parametrize(
    ("parent", "name"),
    [
        (Trainer, "calculate_test_batch_loss"),
        (Trainer, "calculate_loss"),
        (Trainer, "train_step"),
        (Trainer, "forward_step"),
        (Trainer, "train_epoch"),
        (Trainer, "log_images"),
        (StepModel, "shared_step"),
        (StepModel, "decode"),
        (DatasetEvaluator, "preprocess"),
        (GeneralRecommender, "calculate_loss2"),
        (GeneralRecommender, "calculate_kg_loss"),
        (RecommenderTrainer, "_train_epoch_of_teacher"),
    ],
)
def test_methods_of_the_users_own_are_left_alone(parent: Any, name: str) -> None:
    assert hasattr(define(parent, name), name)


def test_a_method_that_the_class_uses_itself_is_the_users_own() -> None:
    class Uses(Trainer):
        def calculate_train_batch_losses(self, batch: Any) -> list[Any]:
            return [super().calculate_train_batch_loss(batch)["loss"]]

        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            return {"loss": sum(self.calculate_train_batch_losses(batch)), "batch_size": len(batch[1])}

    class UsesByName(Trainer):
        def optimizer_steps(self) -> None:
            pass

        def training_run_end(self) -> None:
            getattr(self, "optimizer_steps")()  # noqa: B009 - that is what some programs do

    assert issubclass(Uses, Trainer)
    assert issubclass(UsesByName, Trainer)


def test_a_misspelt_method_is_not_saved_by_calling_its_parents() -> None:
    with pytest.raises(ConfigError, match="did you mean 'calculate_train_batch_loss'"):

        class Slips(Trainer):
            def calculate_trian_batch_loss(self, batch: Any) -> Any:
                return super().calculate_trian_batch_loss(batch)  # type: ignore[misc]


def test_a_method_for_others_to_call_is_listed() -> None:
    assert define(Trainer, "optimizer_steps", custom_methods={"optimizer_steps"})
    with pytest.raises(ConfigError, match="If it is a method of your own that others call, list it in custom_methods"):
        define(Trainer, "optimizer_steps")


def test_a_class_that_is_mixed_in_is_looked_at_as_well() -> None:
    mixed = type("Mixed", (), {"train_epoch_ends": nothing})
    with pytest.raises(ConfigError, match=r"Own\.train_epoch_ends is called by nobody"):
        type("Own", (mixed, Trainer), {})


def test_a_part_of_a_loop_that_nobody_runs_is_refused() -> None:
    name = "_perform_forward_and_backward_passes"
    with pytest.raises(ConfigError, match=f"{name} is called by nobody but a _run_train_epoch of your own"):
        define(Trainer, name)
    assert define(Trainer, name, _run_train_epoch=nothing)


def test_no_verb_is_taken_for_another() -> None:
    for verbs in (TRAINER_VERBS, STEPS, EVENTS):
        for verb in verbs:
            assert nearest(verb, verbs) is None
            assert nearest(verb, [other for other in verbs if other != verb]) is None
    assert [verb for verb in TRAINER_VERBS if not hasattr(Trainer, verb)] == []


# Callbacks ----------------------------------------------------------------------------------------------------------


def test_events_of_a_class_that_is_mixed_in_are_looked_at_as_well() -> None:
    mixed = type("Mixed", (), {"on_trian_epoch_end": nothing})
    with pytest.raises(
        UnknownEventError, match=r"on_trian_epoch_end is called by no event; did you mean 'on_train_epoch"
    ):
        type("Own", (mixed, TrainerCallback), {})


def test_the_misprint_of_pytorch_accelerateds_page_is_refused_in_a_callback() -> None:
    """It says that the methods of callbacks are prefixed with `_on`."""
    with pytest.raises(
        UnknownEventError, match=r"Own\._on_train_epoch_end is called by no event; did you mean 'on_train"
    ):
        define(TrainerCallback, "_on_train_epoch_end")


def test_a_callback_without_our_parent_is_looked_at_when_it_is_added() -> None:
    odd = type("Odd", (), {"on_train_epoch_end": nothing, "on_trian_epoch_start": nothing})()
    model = nn.Linear(2, 1)
    with pytest.raises(CallbackError, match=r"Odd\.on_trian_epoch_start is called by no event; did you mean 'on_train"):
        Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(odd,), device="cpu")


# Optimizers that want closures --------------------------------------------------------------------------------------

DATA = TensorDataset(torch.randn(16, 2, generator=torch.Generator().manual_seed(0)), torch.ones(16, 1))


def build(kind: type[Trainer], **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return kind(model, nn.MSELoss(), torch.optim.LBFGS(model.parameters()), callbacks=(), device="cpu", **options)


REFUSED = (
    "LBFGS needs a closure that calculates the loss again within a step.*use another optimizer, or call self.optim"
)


def test_lbfgs_is_refused_when_the_trainer_is_built() -> None:
    with pytest.raises(ConfigError, match=REFUSED):
        build(Trainer)


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_lbfgs_is_refused_at_its_first_step_by_a_trainer_that_might_have_known_better(on_nonfinite: str) -> None:
    class Adds(Trainer):
        def optimizer_step(self) -> None:
            super().optimizer_step()

    with pytest.raises(ConfigError, match=REFUSED):
        build(Adds, on_nonfinite=on_nonfinite).train(DATA, 1)


def test_lbfgs_learns_in_a_loop_of_ones_own_and_in_a_step_of_ones_own() -> None:
    class OwnLoop(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            for batch in train_dl:
                self.optimizer.step(lambda batch=batch: self.closure(batch))

        def closure(self, batch: Any) -> torch.Tensor:
            self.optimizer.zero_grad()
            output = self.calculate_train_batch_loss(batch)
            self._update_loss_tracker(output["loss"], output["batch_size"])
            output["loss"].backward()
            loss: torch.Tensor = output["loss"]
            return loss

    trainer = build(OwnLoop)
    result = trainer.train(DATA, 3)
    assert result.steps == 6
    assert result.history["train_loss_epoch"][-1] < 1e-6


def test_lbfgs_is_refused_behind_the_other_doors() -> None:
    class Steps(StepModel):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(ConfigError, match=REFUSED):
        StepTrainer(num_epochs=1, device="cpu", callbacks=()).fit(
            Steps(), torch.utils.data.DataLoader(DATA, batch_size=8)
        )

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, inputs: Any, targets: Any) -> Any:
            return {"loss": nn.functional.mse_loss(self.layer(inputs), targets)}

    model = Own()
    loader = torch.utils.data.DataLoader(DATA, batch_size=8)
    with pytest.raises(ConfigError, match=REFUSED):
        EagerTrainer(model, loader, torch.optim.LBFGS(model.parameters())).train(0, 2)


# Schedulers ---------------------------------------------------------------------------------------------------------


def plain(kind: type[Trainer] = Trainer) -> Trainer:
    model = nn.Linear(2, 1)
    return kind(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(), device="cpu")


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda optimizer: None, "create_scheduler_fn returned None; return the scheduler that it makes"),
        (lambda optimizer: torch.optim.lr_scheduler.StepLR, "returned the class StepLR; return an instance"),
        (lambda optimizer: (1, 2), r"create_scheduler_fn returned a tuple, which has no step\(\); return a scheduler"),
    ],
)
def test_a_factory_that_makes_no_scheduler_is_refused(factory: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plain().train(DATA, 1, create_scheduler_fn=factory)


def test_a_create_scheduler_that_forgets_to_return_it_is_refused_or_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Forgets(Trainer):
        def create_scheduler(self) -> Any:
            torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def factory(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)

    with pytest.raises(ConfigError, match=r"Forgets\.create_scheduler returned None; return the scheduler"):
        plain(Forgets).train(DATA, 1, create_scheduler_fn=factory)
    plain(Forgets).train(DATA, 1)
    assert "Forgets.create_scheduler returned None: the learning rates stay as they are" in capsys.readouterr().out
    plain().train(DATA, 1)
    assert "returned None" not in capsys.readouterr().out


def test_a_schedule_of_a_model_with_steps_is_there() -> None:
    from treadle.lightning.optimizers import read_optimizers

    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    for found in ([[optimizer], [None]], {"optimizer": optimizer, "lr_scheduler": {"scheduler": None}}):
        with pytest.raises(ConfigError, match="configure_optimizers, for the schedule, returned None"):
            read_optimizers(found)
    assert read_optimizers({"optimizer": optimizer, "lr_scheduler": None}).scheduler is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lr_schedulr": None}, "'lr_schedulr', which nobody reads; did you mean 'lr_scheduler'"),
        ({"lr_scheduler": {"intervall": "step"}}, "'intervall', which nobody reads; did you mean 'interval'"),
        ({"lr_scheduler": {"every": 2}}, r"'every', which nobody reads; it may have \['scheduler', 'interval'"),
    ],
)
def test_a_misspelt_key_beside_an_optimizer_is_refused(keys: dict[str, Any], said: str) -> None:
    from treadle.lightning.optimizers import read_optimizers

    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=f"configure_optimizers returned a dict with {said}"):
        read_optimizers({"optimizer": optimizer, **keys})


# Devices ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_gpu_that_is_not_there_is_refused_when_the_trainer_is_built(device: Any) -> None:
    model = nn.Linear(2, 1)
    said = r"device='cuda.*', but torch finds no CUDA device: .*; use device='cpu', or leave device out"
    with pytest.raises(ConfigError, match=said):
        Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), device=device)
    with pytest.raises(ConfigError, match=said):
        StepTrainer(num_epochs=1, device=device)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("gpu", "device='gpu' is no device; use 'cpu', 'cuda' or 'cuda:0'"),
        ("meta", "device='meta' has no numbers to train with"),
        ("xpu", "device='xpu' cannot be used here: "),
    ],
)
def test_what_cannot_be_trained_on_is_refused(device: str, said: str) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=said):
        Trainer(model, nn.MSELoss(), None, device=device)


@pytest.mark.parametrize(
    ("device", "rank", "said"),
    [
        ("cuda:3", "0", "device='cuda:3', but this process finds 2 GPUs; use a number below 2"),
        (
            None,
            "2",
            "process 2 of this machine has no GPU of its own: this process finds 2 GPUs; start no more processes",
        ),
    ],
)
def test_a_gpu_beyond_the_last_is_refused(device: Any, rank: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", rank)
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=said):
        Trainer(model, nn.MSELoss(), None, device=device)


def test_a_mix_in_behind_the_trainer_hears_of_subclasses_too() -> None:
    class Named:
        names: list[str] = []

        def __init_subclass__(cls, name: str = "", **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.names.append(name)

    class Own(Trainer, Named, name="own"):
        pass

    assert Own.names == ["own"]
