"""NCL's trainer: when clusters are found, and when they count."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import CutAt, CutError
from tests.recsys.trainer.runs import Run, assert_same_training, make
from treadle.errors import ConfigError
from treadle.recsys import ModelType, NCLTrainer, get_trainer

NCL: dict[str, Any] = {"embedding_size": 8, "num_clusters": 5, "ssl_reg": 1e-4, "proto_reg": 1e-4}


def watched(folder: Path, **given: Any) -> tuple[Run, list[int], list[Any]]:
    """Return a run, the epochs in which it finds clusters, and the losses of its epochs."""
    run = make(folder, "NCL", **NCL, **given)
    found: list[int] = []
    told: list[Any] = []
    step, output = run.model.e_step, run.trainer._generate_train_loss_output
    run.model.e_step = lambda: found.append(run.trainer._core.progress.epoch) or step()
    run.trainer._generate_train_loss_output = lambda *parts: told.append(parts[3]) or output(*parts)
    return run, found, told


def test_ncl_has_its_trainer() -> None:
    assert get_trainer(ModelType.GENERAL, "NCL") is NCLTrainer


@pytest.mark.parametrize(
    ("m_step", "warm_up_step", "found"), [(1, 0, [0, 1, 2, 3, 4, 5]), (1, 4, [4, 5]), (2, 3, [2, 4]), (4, 1, [0, 4])]
)
def test_clusters_are_found_every_few_epochs_once_they_count(
    tmp_path: Path, m_step: int, warm_up_step: int, found: list[int]
) -> None:
    run, epochs, told = watched(tmp_path, m_step=m_step, warm_up_step=warm_up_step, epochs=6, train_batch_size=512)
    run.fit(saved=False)
    assert epochs == found
    assert [len(losses) for losses in told] == [2] * warm_up_step + [3] * (6 - warm_up_step)


def test_a_model_that_cannot_do_without_clusters_has_them_from_the_first_epoch(tmp_path: Path) -> None:
    run, epochs, told = watched(tmp_path, m_step=2, warm_up_step=3, epochs=4, train_batch_size=512)
    # What a model that was written for RecBole has: nothing that says otherwise.
    run.model.needs_clusters_in_warm_up = True
    run.fit(saved=False)
    assert epochs == [0, 2]
    assert [len(losses) for losses in told] == [2, 2, 2, 3]


def test_in_the_warm_up_the_loss_of_the_clusters_moves_nothing(tmp_path: Path) -> None:
    runs = []
    for proto_reg in (0.0, 1.0):
        run = make(tmp_path, "NCL", **{**NCL, "proto_reg": proto_reg}, warm_up_step=2, epochs=2)
        run.fit(saved=False)
        runs.append(run.model.user_embedding.weight)
    assert torch.equal(runs[0], runs[1])


def test_clusters_are_not_found_again_by_a_run_that_goes_on_within_an_epoch(tmp_path: Path) -> None:
    given = {"epochs": 3, "warm_up_step": 1, "m_step": 2, "save_every": "1 step"}
    whole, epochs, _ = watched(tmp_path, run_dir=str(tmp_path / "whole"), **given)
    whole.fit()
    assert epochs == [0, 2]
    # In the last epoch, after its second update.
    last = 2 * len(whole.train) + 2
    with pytest.raises(CutError):
        make(tmp_path, "NCL", CutAt(last), run_dir=str(tmp_path / "cut"), **NCL, **given).fit()
    cut, epochs, _ = watched(tmp_path, run_dir=str(tmp_path / "cut"), **given)
    cut.fit()
    assert cut.updates == (last - 1, len(whole.train) - 1)
    assert epochs == []
    assert_same_training(cut.trainer, whole.trainer)


def test_clusters_are_in_the_file_of_the_model(tmp_path: Path) -> None:
    run = make(tmp_path, "NCL", **NCL, warm_up_step=0, epochs=1)
    run.fit()
    other = make(tmp_path, "NCL", **NCL, warm_up_step=0, epochs=1)
    assert not torch.equal(other.model.item_2cluster, run.model.item_2cluster)
    other.trainer.resume_checkpoint(run.trainer.saved_model_file)
    assert torch.equal(other.model.item_2cluster, run.model.item_2cluster)
    assert torch.equal(other.model.item_centroids, run.model.item_centroids)


def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="m_step=0 must be a whole number from 1"):
        make(tmp_path, "NCL", **NCL, m_step=0)
    with pytest.raises(ConfigError, match="warm_up_step=-1 must be a whole number from 0"):
        make(tmp_path, "NCL", **NCL, warm_up_step=-1)
