"""Loops of the user's: what they are given, what is counted, and what the trainer's own loop does inside them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from tests.recsys.trainer.runs import make
from treadle.errors import ConfigError, LossError, NonFiniteError
from treadle.recsys import AbstractTrainer, Interaction, Trainer
from treadle.recsys.models.general_recommender import BPR
from treadle.recsys.trainers.abstract_trainer import Pass
from treadle.recsys.trainers.trainer import NanLossError


class Loop(Trainer):
    """A loop as RecBole's users write it."""

    def _train_epoch(
        self, train_data: Any, epoch_idx: int, loss_func: Any = None, show_progress: bool = False
    ) -> float:
        self.model.train()
        total = 0.0
        for interaction in train_data:
            self.optimizer.zero_grad()
            self.set_reduce_hook()
            loss = self.model.calculate_loss(interaction.to(self.device)) + self.sync_grad_loss()
            self._check_nan(loss)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total


def test_a_loop_of_ones_own_learns_to_the_bit_what_the_trainers_own_does(tmp_path: Path) -> None:
    own, plain = make(tmp_path, kind=Loop), make(tmp_path)
    assert own.fit() == plain.fit()
    assert own.trainer.train_loss_dict == plain.trainer.train_loss_dict
    assert torch.equal(own.model.item_embedding.weight, plain.model.item_embedding.weight)


def test_updates_and_samples_of_a_loop_of_ones_own_are_counted(tmp_path: Path) -> None:
    run = make(tmp_path, kind=Loop, epochs=2)
    run.fit()
    progress = run.trainer._core.progress
    assert (progress.step, progress.samples) == (2 * len(run.train), 2 * run.train.sample_size)


def test_a_loop_of_ones_own_is_given_its_data_with_all_that_the_data_has(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looking(Loop):
        def _train_epoch(self, train_data: Any, epoch_idx: int, **kwargs: Any) -> float:  # type: ignore[override]
            seen.append((len(train_data), train_data.dataset, train_data.step, type(next(iter(train_data)))))
            return super()._train_epoch(train_data, epoch_idx)

    run = make(tmp_path, kind=Looking, epochs=1)
    run.fit()
    assert seen == [(len(run.train), run.train.dataset, run.train.step, Interaction)]


def test_each_pass_over_the_data_in_an_epoch_has_an_order_and_negatives_of_its_own(tmp_path: Path) -> None:
    passes: list[list[tuple[int, ...]]] = []

    class TwoPasses(Loop):
        def _train_epoch(self, train_data: Any, epoch_idx: int, **kwargs: Any) -> float:  # type: ignore[override]
            for _ in range(2):
                passes.append([tuple(batch["neg_item_id"].tolist()) for batch in train_data])
            return super()._train_epoch(train_data, epoch_idx)

    make(tmp_path, kind=TwoPasses, epochs=1).fit()
    assert passes[0] != passes[1]
    first = [row for batch in passes[0] for row in batch]
    assert len(first) == len([row for batch in passes[1] for row in batch])


class GoesOn(IterableDataset[Any]):
    """Users one by one; a pass goes on where the last one was left, as its state says."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples, self.place = samples, 0

    def __iter__(self) -> Iterator[Any]:
        while self.place < len(self.samples):
            self.place += 1
            yield self.samples[self.place - 1]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def joined(samples: list[Any]) -> Interaction:
    return Interaction({name: torch.stack([sample[name] for sample in samples]) for name in samples[0]})


@pytest.mark.parametrize("goes_on", [False, True])
def test_passes_over_data_that_is_no_loader_of_this_door_are_whole_and_have_orders_of_their_own(
    tmp_path: Path, goes_on: bool
) -> None:
    passes: list[list[int]] = []

    class LooksFirst(Loop):
        def _train_epoch(self, train_data: Any, epoch_idx: int, **kwargs: Any) -> float:  # type: ignore[override]
            next(iter(train_data))
            for _ in range(2):
                passes.append([place for batch in train_data for place in batch["place"].tolist()])
            return super()._train_epoch(train_data, epoch_idx)

    run = make(tmp_path, kind=LooksFirst, epochs=1)
    rows = next(iter(run.train)).interaction
    samples = [{"place": torch.tensor(row), **{name: rows[name][row] for name in rows}} for row in range(50)]
    data: Any = GoesOn(samples) if goes_on else samples
    run.trainer.fit(DataLoader(data, 16, shuffle=not goes_on, collate_fn=joined), saved=False, verbose=False)
    assert [sorted(one) for one in passes] == [list(range(50))] * 2
    assert (passes[0] == passes[1]) is goes_on


class Passes(Trainer):
    """Calls the trainer's own loop twice, with a loss of its own the second time."""

    def _train_epoch(self, train_data: Any, epoch_idx: int, **kwargs: Any) -> Any:  # type: ignore[override]
        first = super()._train_epoch(train_data, epoch_idx, **kwargs)
        return first, super()._train_epoch(train_data, epoch_idx, loss_func=self.doubled)

    def doubled(self, interaction: Interaction) -> Tensor:
        loss: Tensor = 2 * self.model.calculate_loss(interaction)
        return loss


def test_a_pass_within_a_pass_leaves_it_alone(tmp_path: Path) -> None:
    inner: set[int] = set()

    class Nested(Loop):
        def _train_epoch(self, train_data: Any, epoch_idx: int, **kwargs: Any) -> float:  # type: ignore[override]
            def looked_at() -> Any:
                for interaction in train_data:
                    inner.add(sum(len(one) for one in train_data))
                    yield interaction

            return super()._train_epoch(looked_at(), epoch_idx)

    run, plain = make(tmp_path, kind=Nested, epochs=2), make(tmp_path, kind=Loop, epochs=2)
    assert run.fit() == plain.fit()
    assert inner == {run.train.sample_size}
    assert run.trainer._core.progress == plain.trainer._core.progress
    assert torch.equal(run.model.item_embedding.weight, plain.model.item_embedding.weight)


def test_the_trainers_own_loop_can_be_run_several_times_in_an_epoch(tmp_path: Path) -> None:
    run = make(tmp_path, kind=Passes, epochs=1)
    run.fit()
    assert run.trainer._core.progress.step == 2 * len(run.train)
    losses = [run.trainer._core.run_history.get_latest_metric(f"train_loss{part}") for part in (1, 2)]
    assert losses[1] > 1.5 * losses[0]
    assert run.trainer.train_loss_dict == {0: sum(losses)}


def test_an_epoch_that_only_does_something_before_and_after_is_the_same_as_the_trainers_own(tmp_path: Path) -> None:
    calls: list[str] = []

    class Around(Trainer):
        def _train_epoch(self, *args: Any, **kwargs: Any) -> Any:
            calls.append("before")
            losses = super()._train_epoch(*args, **kwargs)
            calls.append("after")
            return losses

    around, plain = make(tmp_path, kind=Around, epochs=2), make(tmp_path, epochs=2)
    assert around.fit() == plain.fit()
    assert calls == ["before", "after"] * 2
    assert around.trainer.train_loss_dict == plain.trainer.train_loss_dict


class OwnFit(Trainer):
    """A `fit` of your own, as RecBole's NCLTrainer has it."""

    def fit(self, train_data: Any, valid_data: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        for epoch in range(self.epochs):
            self.train_loss_dict[epoch] = self._train_epoch(train_data, epoch)  # type: ignore[assignment]
            score, result = self._valid_epoch(valid_data)
            if score > self.best_valid_score:
                self.best_valid_score, self.best_valid_result = score, result
                self._save_checkpoint(epoch, verbose=False)
        return self.best_valid_score, self.best_valid_result


def test_a_fit_of_ones_own_can_call_the_trainers_epochs(tmp_path: Path) -> None:
    own, plain = make(tmp_path, kind=OwnFit), make(tmp_path)
    assert own.fit() == plain.fit()
    assert own.trainer.train_loss_dict == plain.trainer.train_loss_dict
    assert own.trainer.evaluate(own.test).exact == plain.trainer.evaluate(plain.test).exact


def test_a_file_saved_by_a_fit_of_ones_own_can_be_gone_on_from(tmp_path: Path, caplog: Any) -> None:
    first = make(tmp_path, kind=OwnFit, epochs=2)
    first.fit()
    resumed = make(tmp_path, epochs=3)
    resumed.trainer.resume_checkpoint(first.trainer.saved_model_file)
    assert resumed.trainer.start_epoch in (1, 2)
    resumed.fit()
    assert "was saved outside a run: weights and optimizer are taken from it" in caplog.text
    assert list(resumed.trainer.train_loss_dict)[-1] == 2


# Checks of the loss -------------------------------------------------------------------------------------------


class Diverging(BPR):
    """Its loss becomes nan in its second epoch."""

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        loss = super().calculate_loss(interaction)
        return loss * float("nan") if self.spoilt else loss

    spoilt = False

    def start_epoch(self, epoch: int) -> None:
        self.spoilt = epoch == 1


def test_a_loss_that_is_nan_ends_the_training_and_names_the_step(tmp_path: Path) -> None:
    run = make(tmp_path, Diverging, embedding_size=8)
    with pytest.raises(NonFiniteError, match=f"loss is nan at step {len(run.train) + 1}"):
        run.fit()


def test_check_nan_of_a_loop_of_ones_own_is_a_value_error_as_in_recbole(tmp_path: Path) -> None:
    run = make(tmp_path, Diverging, kind=Loop, embedding_size=8)
    with pytest.raises(ValueError, match="Training loss is nan"):
        run.fit()
    assert issubclass(NanLossError, NonFiniteError)


def test_an_own_check_nan_sees_the_loss_of_every_batch(tmp_path: Path) -> None:
    losses: list[float] = []

    class Checking(Trainer):
        def _check_nan(self, loss: Tensor) -> None:
            losses.append(loss.item())

    run = make(tmp_path, kind=Checking, epochs=1)
    run.fit()
    assert len(losses) == len(run.train)
    assert run.trainer.train_loss_dict[0] == pytest.approx(sum(losses), rel=1e-12)


def test_bad_updates_can_be_left_out(tmp_path: Path) -> None:
    run = make(tmp_path, Diverging, embedding_size=8, on_nonfinite="skip")
    run.fit()
    assert len(run.trainer.train_loss_dict) == 3
    assert run.trainer.train_loss_dict[1] == 0.0


class NumberLoss(BPR):
    def calculate_loss(self, interaction: Interaction) -> Any:
        return super().calculate_loss(interaction).item()


def test_a_loss_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path, NumberLoss, embedding_size=8)
    with pytest.raises(LossError, match=r"the loss of a batch is 0\.69.*; return a tensor, or a tuple of tensors"):
        run.fit()


# Passes -------------------------------------------------------------------------------------------------------


def test_passes_that_are_due_in_some_epochs_only_are_made_in_those(tmp_path: Path) -> None:
    calls: list[str] = []

    class Alternating(Trainer):
        def _passes(self) -> Any:
            return [
                Pass(name="even", loss=self._even, optimizer=self.optimizer, is_due=lambda epoch: epoch % 2 == 0),
                Pass(name="odd", loss=self._odd, optimizer=self.optimizer, is_due=lambda epoch: epoch % 2 == 1),
            ]

        def _even(self, interaction: Interaction) -> Tensor:
            calls.append("even")
            loss: Tensor = self.model.calculate_loss(interaction)
            return loss

        def _odd(self, interaction: Interaction) -> Tensor:
            calls.append("odd")
            loss: Tensor = 2 * self.model.calculate_loss(interaction)
            return loss

    run = make(tmp_path, kind=Alternating, epochs=3)
    run.fit()
    each = len(run.train)
    assert calls == ["even"] * each + ["odd"] * each + ["even"] * each


def test_recvae_trains_encoder_and_decoder_in_turns(tmp_path: Path) -> None:
    given = {"hidden_dimension": 16, "latent_dimension": 8, "n_enc_epochs": 2, "n_dec_epochs": 1}
    run = make(tmp_path, "RecVAE", epochs=1, train_batch_size=8, **given)
    flags: list[bool] = []
    calculate, update = run.model.calculate_loss, run.model.update_prior

    def noting(interaction: Interaction, encoder_flag: bool = True) -> Tensor:
        flags.append(encoder_flag)
        loss: Tensor = calculate(interaction, encoder_flag)
        return loss

    def updating() -> None:
        flags.append(None)  # type: ignore[arg-type]
        update()

    run.model.calculate_loss, run.model.update_prior = noting, updating
    run.fit()
    each = len(run.train)
    assert flags == [True] * (2 * each) + [None] + [False] * each
    assert run.trainer._core.progress.step == 3 * each


def test_the_encoder_of_recvae_stays_while_the_decoder_learns(tmp_path: Path) -> None:
    given = {"hidden_dimension": 16, "latent_dimension": 8, "n_enc_epochs": 1, "n_dec_epochs": 1}
    run = make(tmp_path, "RecVAE", epochs=1, train_batch_size=8, **given)
    run.fit()
    for old, new in zip(run.model.prior.encoder_old.parameters(), run.model.encoder.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_traditional_model_is_fitted_once_and_evaluated_whatever_eval_step_says(tmp_path: Path) -> None:
    run = make(tmp_path, "Pop", eval_step=2, epochs=50)
    score, _ = run.fit()
    assert run.trainer.epochs == 1
    counts = torch.bincount(run.train.dataset.inter_feat["item_id"], minlength=31)
    assert torch.equal(run.model.item_count, counts)
    assert run.trainer.evaluate(run.valid).exact["ndcg@5"] == score


class RecBolesPop(BPR):
    """A closed-form model as RecBole has them: it counts in `calculate_loss`, and has no `fit`."""

    from treadle.recsys import ModelType

    type = ModelType.TRADITIONAL
    rows = 0

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        self.rows += len(interaction)
        return torch.nn.Parameter(torch.zeros(1))


def test_a_traditional_model_without_fit_sees_every_batch_once(tmp_path: Path) -> None:
    run = make(tmp_path, RecBolesPop, embedding_size=8)
    run.fit()
    assert run.model.rows == run.train.sample_size


# Parents ------------------------------------------------------------------------------------------------------


def test_the_abstract_trainer_leaves_fit_and_evaluate_to_others(tmp_path: Path) -> None:
    run = make(tmp_path)
    trainer = AbstractTrainer(run.trainer.config, run.model)
    with pytest.raises(NotImplementedError, match="AbstractTrainer does not define fit"):
        trainer.fit(run.train)
    with pytest.raises(NotImplementedError, match="AbstractTrainer does not define evaluate"):
        trainer.evaluate(run.test)
    assert trainer.set_reduce_hook() is None  # type: ignore[func-returns-value]
    assert trainer.sync_grad_loss() == 0


def test_a_name_that_the_run_uses_itself_cannot_be_tracked(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.trainer.track(progress=run.train)
    with pytest.raises(ConfigError, match=r"track\(progress=...\): the run has something of this name already"):
        run.fit()
