"""Options of the core in the settings of a recommender: what each of them does to a training."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.recsys.trainer.runs import assert_same_training, fit_through, make
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError, NonFiniteError
from treadle.recsys import Trainer
from treadle.recsys.models.general_recommender import BPR

SMALL = {"embedding_size": 8, "learning_rate": 0.01}


class Looks(TrainerCallback):
    """Takes note, at every update, of what a function of the trainer says."""

    def __init__(self, look: Any) -> None:
        self._look, self.seen = look, []

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.seen.append(self._look(trainer))


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_two_batches_in_an_update_are_one_of_twice_the_size(tmp_path: Path, model: str) -> None:
    make_run = partial(make, model=model, double=True, **SMALL)
    whole = make_run(tmp_path / "whole", train_batch_size=64)
    parts = make_run(tmp_path / "parts", train_batch_size=32, gradient_accumulation_steps=2)
    for run in (whole, parts):
        run.fit()
    assert parts.trainer._core.progress.step == whole.trainer._core.progress.step == 12
    for one, other in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_updates_of_several_batches_go_on_where_a_training_died(tmp_path: Path) -> None:
    given = {"train_batch_size": 32, "gradient_accumulation_steps": 3, "save_every": "1 step", **SMALL}
    whole = make(tmp_path, run_dir=str(tmp_path / "whole"), **given)
    whole.fit()
    # Eight batches an epoch: two updates of three, and one of two.
    assert whole.trainer._core.progress.step == 9
    cut = fit_through([2, 4, 6], partial(make, tmp_path, "BPR", run_dir=str(tmp_path / "cut"), **given))
    assert_same_training(cut.trainer, whole.trainer)


def test_products_are_rounded_as_asked_while_a_model_is_trained(tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    looks = Looks(lambda trainer: torch.get_float32_matmul_precision())
    make(tmp_path, "BPR", looks, matmul_precision="high", **SMALL).fit()
    assert set(looks.seen) == {"high"} != {before}
    assert torch.get_float32_matmul_precision() == before


def test_the_state_of_the_optimizer_is_kept_on_the_host_and_learns_the_same(tmp_path: Path) -> None:
    looks = Looks(lambda trainer: len(trainer.this_run.updater.offloaded))
    kept, plain = (
        make(tmp_path / "kept", "BPR", looks, offload_optimizer=True, **SMALL),
        make(tmp_path / "plain", **SMALL),
    )
    kept.fit()
    plain.fit()
    assert set(looks.seen) == {1}
    assert_same_training(kept.trainer, plain.trainer)


def test_modules_that_are_named_are_computed_again(tmp_path: Path) -> None:
    passes = []
    run = make(tmp_path, "NeuMF", activation_checkpointing=["mlp_layers"], execution="eager", mf_embedding_size=8)
    inner = next(module for module in run.model.mlp_layers.modules() if isinstance(module, nn.Linear))
    inner.register_forward_hook(lambda *arguments: passes.append(inner.training))
    looks = Looks(lambda trainer: (passes.count(True), passes.clear())[0])
    run.trainer.callbacks += (looks,)
    run.fit()
    assert set(looks.seen) == {2}
    with pytest.raises(ConfigError, match=r"'mpl_layers'.*did you mean 'mlp_layers'"):
        make(tmp_path / "wrong", "NeuMF", activation_checkpointing=["mpl_layers"], mf_embedding_size=8).fit()


class Planted(BPR):
    """Has a loss that is not a number for one user."""

    def calculate_loss(self, interaction: Any) -> Any:
        return super().calculate_loss(interaction) / (interaction["user_id"] != 3).all()


def test_a_run_rolls_back_as_often_as_it_may(tmp_path: Path) -> None:
    given = {"on_nonfinite": "rollback", "max_rollbacks": 0, "save_every": "1 step", "execution": "eager"}
    run = make(tmp_path, Planted, run_dir=str(tmp_path / "run"), embedding_size=8, **given)
    with pytest.raises(NonFiniteError, match="after 0 rollbacks"):
        run.fit()


def test_an_option_of_the_core_is_read_and_one_that_is_misspelt_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "read", max_rollbacks=1, gradient_accumulation_steps=2, **SMALL).fit()
    assert "reads it" not in caplog.text
    with pytest.raises(ConfigError, match=r"gradient_acumulation_steps=2 .*did you mean 'gradient_accumulation_steps'"):
        make(tmp_path / "told", gradient_acumulation_steps=2, **SMALL).fit()


class OwnEpochs(Trainer):
    """Makes its updates itself."""

    def _train_epoch(
        self, train_data: Any, epoch_idx: int, loss_func: Any = None, show_progress: bool = False
    ) -> float:
        raise AssertionError("nothing is trained")


def test_a_loop_of_ones_own_is_not_told_how_many_batches_make_an_update(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gradient_accumulation_steps=2: OwnEpochs does not make its updates of"):
        make(tmp_path, kind=OwnEpochs, gradient_accumulation_steps=2, **SMALL).fit()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"gradient_accumulation_steps": 1.5}, "gradient_accumulation_steps=1.5 must be a whole number above 0"),
        ({"gradient_accumulation_steps": -1}, "gradient_accumulation_steps=-1 must be a whole number above 0"),
        ({"offload_optimizer": "maybe"}, "offload_optimizer='maybe'"),
        ({"matmul_precision": "hihg"}, "matmul_precision='hihg'"),
        ({"max_rollbacks": -1}, "max_rollbacks=-1 must be a whole number from 0"),
    ],
)
def test_what_an_option_cannot_be_is_refused_by_name(tmp_path: Path, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, **setting, **SMALL).fit()
