"""The switch that makes torch give the same bits each time, or fail."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.interrupting import assert_same_bits, make_trainer, samples, state_of
from treadle import Trainer, TrainerCallback
from treadle.errors import ConfigError
from treadle.precision.tf32 import Deterministic

CPU = torch.device("cpu")
Settings = tuple[bool, bool, bool]


def settings() -> Settings:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


@pytest.fixture(autouse=True)
def _settings_stay() -> Iterator[None]:
    before = settings()
    yield
    after = settings()
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.benchmark = before[2]
    assert after == before


class Looks(TrainerCallback):
    """Takes note of torch's settings in every update and evaluation."""

    def __init__(self) -> None:
        self.seen: set[Settings] = set()

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.seen.add(settings())

    def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self.seen.add(settings())


class Undetermined(nn.Linear):
    """A model with an operation for which torch has no deterministic algorithm."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
        outputs: Tensor = super().forward(inputs)
        return outputs


@pytest.mark.parametrize(("deterministic", "seen"), [(True, (True, False, False)), (False, (False, False, False))])
def test_the_switch_holds_for_the_whole_run_and_no_longer(deterministic: bool, seen: Settings) -> None:
    looks = Looks()
    make_trainer(None, looks, deterministic=deterministic).train(samples(), 2, samples(8))
    assert looks.seen == {seen}
    assert settings() == (False, False, False)


def test_the_switch_is_turned_back_after_an_error() -> None:
    class Fails(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_trainer(None, Fails, deterministic=True).train(samples(), 1)
    assert settings() == (False, False, False)


def test_what_cannot_be_determined_fails_and_names_its_place() -> None:
    trainer = make_trainer(None, build=Undetermined, deterministic=True)
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation") as caught:
        trainer.train(samples(), 1)
    assert any("at step 1, epoch 1" in note for note in caught.value.__notes__)


def test_without_the_switch_it_is_let_be() -> None:
    assert make_trainer(None, build=Undetermined).train(samples(), 1).steps == 3


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_what_was_set_before_comes_back(before: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.benchmark = True
    try:
        with Deterministic(CPU):
            assert settings() == (True, False, False)
        assert settings() == (*before, True)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False


def test_on_the_cpu_the_switch_changes_no_bits() -> None:
    trainers = [make_trainer(None, deterministic=deterministic) for deterministic in (True, False)]
    for trainer in trainers:
        trainer.train(samples(), 2)
    assert_same_bits(*map(state_of, trainers))


@pytest.mark.parametrize("value", [None, ":8:8"])
def test_on_cuda_a_missing_setting_of_the_process_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    with pytest.raises(ConfigError) as caught:
        Deterministic(torch.device("cuda"))
    assert str(caught.value) == (
        "deterministic=True on CUDA needs CUBLAS_WORKSPACE_CONFIG to be one of (':4096:8', ':16:8') "
        f"before the process starts; it is {value!r}"
    )


@pytest.mark.parametrize("value", [":4096:8", ":16:8"])
def test_on_cuda_either_setting_will_do(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    Deterministic(torch.device("cuda"))


@pytest.mark.parametrize("given", ["no", "off", 2, None])
def test_a_wish_that_is_no_truth_value_is_refused(given: Any) -> None:
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=rf"^deterministic={given!r} must be True or False$"):
        Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), deterministic=given)
