"""Trainers of models with a knowledge graph: which data each pass goes through, and when."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.trainer.runs import make
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.recsys import KGATTrainer, KGDataLoaderState, KGTrainer, MKRTrainer, ModelType, get_trainer
from treadle.recsys.trainers.kg_trainer import select_batches

SMALL: dict[str, Any] = {"embedding_size": 8}
KGAT: dict[str, Any] = {**SMALL, "kg_embedding_size": 8, "layers": [8]}


class Drawn(TrainerCallback):
    """Notes what each batch had: interactions, triples or both; a list for each epoch."""

    def __init__(self) -> None:
        self.epochs: list[str] = []

    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        self.epochs.append("")

    def on_train_step_start(self, trainer: Any, batch: Any, **kwargs: Any) -> None:
        pairs, triples = "user_id" in batch, "head_id" in batch
        self.epochs[-1] += "b" if pairs and triples else "r" if pairs else "k"


def drawn(folder: Path, model: str, **given: Any) -> list[str]:
    seen = Drawn()
    make(folder, model, seen, **given).fit(saved=False)
    return seen.epochs


def test_models_have_the_trainer_of_their_name_or_of_their_kind() -> None:
    found = {name: get_trainer(ModelType.KNOWLEDGE, name) for name in ("KGAT", "MKR", "CKE", "KTUP")}
    assert found == {"KGAT": KGATTrainer, "MKR": MKRTrainer, "CKE": KGTrainer, "KTUP": KGTrainer}


def test_joint_batches_have_pairs_and_triples(tmp_path: Path) -> None:
    assert drawn(tmp_path, "CKE", **SMALL, kg_embedding_size=8) == ["bbbb"] * 3


@pytest.mark.parametrize("model", ["KGCN", "KGIN", "RippleNet"])
def test_models_without_a_loss_of_triples_are_given_none(tmp_path: Path, model: str) -> None:
    assert set("".join(drawn(tmp_path, model, **SMALL, epochs=1))) == {"r"}


def test_epochs_go_through_interactions_and_triples_in_turns(tmp_path: Path) -> None:
    given = {**SMALL, "train_rec_step": 2, "train_kg_step": 1, "epochs": 5}
    assert drawn(tmp_path, "KTUP", **given) == ["rrrr", "rrrr", "kk", "rrrr", "rrrr"]


def test_kgat_goes_through_interactions_then_triples_and_then_renews_its_attention(tmp_path: Path) -> None:
    assert drawn(tmp_path, "KGAT", **KGAT, epochs=2) == ["rrrrkk", "rrrrkk"]
    run = make(tmp_path, "KGAT", **KGAT, epochs=2)
    first = run.model.attention.clone()
    run.fit(saved=False)
    kept = run.model.attention.clone()
    run.model.update_attentive_A()
    assert not torch.equal(kept, first)
    assert torch.equal(kept, run.model.attention)
    assert not run.model.attention.requires_grad


def test_kgats_attention_is_part_of_the_file_of_the_model(tmp_path: Path) -> None:
    run = make(tmp_path, "KGAT", **KGAT, epochs=2)
    run.fit()
    other = make(tmp_path, "KGAT", **KGAT, epochs=2)
    other.trainer.resume_checkpoint(run.trainer.saved_model_file)
    assert torch.equal(other.model.attention, run.model.attention) or run.trainer.cur_step
    assert other.trainer.evaluate(other.valid, load_best_model=False).exact == run.trainer.best_valid_result.exact


def test_mkr_goes_through_triples_every_few_epochs(tmp_path: Path) -> None:
    found = drawn(tmp_path, "MKR", **SMALL, kge_interval=3, epochs=4, train_batch_size=256)
    assert found == ["rrk", "rr", "rr", "rrk"]


def test_mkrs_triples_may_have_an_optimizer_of_their_own(tmp_path: Path) -> None:
    alone = make(tmp_path, "MKR", **SMALL).trainer
    assert alone.optimizer_kge is alone.optimizer
    two = make(tmp_path, "MKR", **SMALL, kge_learning_rate=0.02).trainer
    assert [one.param_groups[0]["lr"] for one in (two.optimizer, two.optimizer_kge)] == [0.001, 0.02]


def test_an_epoch_reports_the_losses_of_its_own_passes_only(tmp_path: Path) -> None:
    run = make(tmp_path, "MKR", **SMALL, kge_interval=2, epochs=3, train_batch_size=256)
    told: list[Any] = []
    real = run.trainer._generate_train_loss_output
    run.trainer._generate_train_loss_output = lambda *given: told.append(given[3]) or real(*given)
    run.fit(saved=False)
    assert [type(one) for one in told] == [tuple, float, tuple]


def test_the_losses_of_kgat_are_those_of_both_passes(tmp_path: Path) -> None:
    run = make(tmp_path, "KGAT", **KGAT, epochs=1, mess_dropout=0.0, learning_rate=0.0)
    run.fit(saved=False)
    model = run.model
    pairs = [run.train.part(KGDataLoaderState.RS).batch_at(0, index) for index in range(4)]
    # The second pass of an epoch has an order and negatives of its own.
    triples = [run.train.part(KGDataLoaderState.KG).batch_at(1 << 32, index) for index in range(2)]
    with torch.no_grad():
        # The attention has been renewed after the first pass was over.
        model.attention.copy_(make(tmp_path, "KGAT", **KGAT).model.attention)
        expected = sum(map(model.calculate_loss, pairs)) + sum(map(model.calculate_kg_loss, triples))
    assert run.trainer.train_loss_dict[0] == pytest.approx(float(expected), rel=1e-5)


def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kge_interval=0 must be a whole number from 1"):
        make(tmp_path, "MKR", **SMALL, kge_interval=0)
    with pytest.raises(ConfigError, match="train_kg_step=0 must be a whole number from 1, or nothing"):
        make(tmp_path, "KTUP", **SMALL, train_kg_step=0)


def test_data_without_triples_is_refused_where_they_are_trained_on() -> None:
    assert select_batches([1], KGDataLoaderState.RS) == [1]
    with pytest.raises(ConfigError, match="the training data is a list, which has no triples to train on"):
        select_batches([1], KGDataLoaderState.KG)


def test_a_loop_of_ones_own_chooses_by_modes(tmp_path: Path) -> None:
    class InTurns(KGTrainer):
        def _train_epoch(self, train_data: Any, epoch_idx: int, **kwargs: Any) -> Any:  # type: ignore[override]
            train_data.set_mode(KGDataLoaderState.RS)
            first = super()._train_epoch(train_data, epoch_idx)
            train_data.set_mode(KGDataLoaderState.KG)
            return first, super()._train_epoch(train_data, epoch_idx, loss_func=self.model.calculate_kg_loss)

    seen = Drawn()
    run = make(tmp_path, "KGAT", seen, kind=InTurns, **KGAT, epochs=2)
    run.fit(saved=False)
    assert seen.epochs == ["rrrrkk", "rrrrkk"]


@pytest.mark.parametrize("model", ["CFKG", "KGAT"])
def test_a_training_in_bf16_goes_through(tmp_path: Path, model: str) -> None:
    given = KGAT if model == "KGAT" else SMALL
    run = make(tmp_path, model, **given, epochs=2, precision="bf16")
    score, _ = run.fit(saved=False)
    assert 0 <= score <= 1
    assert all(one.isfinite().all() for one in run.model.parameters())
