"""Batches that are calculated in parts when memory runs out: the training stays what it was."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.suites.every_model import make as make_any
from tests.recsys.trainer.runs import Run, assert_same_training, make
from treadle.loop.oom_retry import split_batch
from treadle.recsys import Interaction, Trainer, get_model


def narrow(name: str, most: int | None) -> type:
    """Return a kind of model for which memory runs out above so many rows at once."""
    kind: Any = get_model(name)

    class Narrow(kind):  # type: ignore[misc]
        sizes: list[int]

        def calculate_loss(self, interaction: Interaction) -> Any:
            loss = super().calculate_loss(interaction)
            if self.training:
                self.__dict__.setdefault("sizes", []).append(len(interaction))
                if most is not None and len(interaction) > most:
                    raise torch.OutOfMemoryError(f"no room for {len(interaction)} rows")
            return loss

    return Narrow


def trained(folder: Path, name: str, most: int | None, **given: Any) -> Run:
    run = make(folder, narrow(name, most), microbatch="auto", embedding_size=8, double=True, **given)
    run.fit()
    return run


def assert_close(left: Run, right: Run) -> None:
    for key, weights in right.model.state_dict().items():
        torch.testing.assert_close(left.model.state_dict()[key], weights, rtol=0, atol=1e-12)
    losses = [list(run.trainer.train_loss_dict.values()) for run in (left, right)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize(("most", "tried"), [(40, [64]), (16, [64, 32]), (1, [64, 32, 16, 8, 4, 2])])
def test_a_batch_in_parts_trains_as_the_whole_batch(tmp_path: Path, most: int, tried: list[int]) -> None:
    cut, whole = trained(tmp_path, "BPR", most), trained(tmp_path, "BPR", None)
    assert_close(cut, whole)
    assert cut.model.sizes[: len(tried)] == tried
    assert max(cut.model.sizes[len(tried) :]) <= most
    assert cut.trainer._core.progress.step == whole.trainer._core.progress.step


def test_parts_weigh_by_the_positions_that_their_loss_is_a_mean_over(tmp_path: Path) -> None:
    given: dict[str, Any] = {"hidden_size": 8, "inner_size": 8, "n_layers": 1, "n_heads": 2, "MAX_ITEM_LIST_LENGTH": 8}
    given |= {"hidden_dropout_prob": 0.0, "attn_dropout_prob": 0.0, "train_batch_size": 40}
    runs = []
    for most in (3, None):
        run = make(tmp_path, narrow("SASRec", most), microbatch="auto", double=True, train_all_positions=True, **given)
        run.fit()
        runs.append(run)
    assert_close(*runs)


def test_a_pass_inside_of_ones_own_epoch_is_cut_too(tmp_path: Path) -> None:
    class Around(Trainer):
        def _train_epoch(self, train_data: Any, epoch_idx: int, **kwargs: Any) -> Any:  # type: ignore[override]
            return super()._train_epoch(train_data, epoch_idx)

    cut = make(tmp_path, narrow("BPR", 20), kind=Around, microbatch="auto", embedding_size=8, double=True)
    cut.fit()
    assert_close(cut, trained(tmp_path, "BPR", None))


def test_without_the_setting_running_out_of_memory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="no room for 64 rows"):
        make(tmp_path, narrow("BPR", 20), embedding_size=8).fit()


def test_a_training_that_never_runs_out_has_the_bits_of_one_without_the_setting(tmp_path: Path) -> None:
    plain, careful = make_any(tmp_path, "BPR"), make_any(tmp_path, "BPR", microbatch="auto")
    plain.fit()
    careful.fit()
    assert_same_training(plain.trainer, careful.trainer)


def test_an_interaction_is_cut_along_its_rows() -> None:
    batch = Interaction({"user_id": [1, 2, 3, 4, 5], "item_id_list": [[1], [2], [3], [4], [5]]})
    first, second = split_batch(batch, 2)
    assert isinstance(first, Interaction)
    assert sorted([*first["user_id"].tolist(), *second["user_id"].tolist()]) == [1, 2, 3, 4, 5]
    assert first["item_id_list"].flatten().tolist() == first["user_id"].tolist()
    assert (len(first), len(second)) == (3, 2)
    inside = split_batch((batch, torch.arange(5)), 2)[0]
    assert inside[0]["user_id"].tolist() == (inside[1] + 1).tolist()
