"""A model that is cut short inside of its epochs and started again ends in the bits of one that was not."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.interrupting import CutAt, CutError, metric_lines
from tests.recsys.suites.every_model import FITTED, TRAINABLE, make
from tests.recsys.trainer.runs import assert_same_training, fit_through


class CutAtTheEnd(CutAt):
    """Makes the run die after the epoch, before anything of it is saved."""

    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        raise CutError("cut at the end of an epoch")


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_model_that_is_cut_inside_of_epochs_ends_with_the_same_bits(tmp_path: Path, name: str) -> None:
    whole = make(tmp_path, name, run_dir=str(tmp_path / "whole"), save_every="2 steps")
    whole.fit()
    steps = whole.trainer._core.progress.step
    assert steps >= 6
    # Inside of the first epoch and of the second, once behind a checkpoint and once at one.
    cuts = [1, steps // 2 + 1, steps - 1]
    cut = fit_through(cuts, partial(make, tmp_path, name, run_dir=str(tmp_path / "cut"), save_every="2 steps"), saved=2)
    assert_same_training(cut.trainer, whole.trainer)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")
    assert cut.trainer.evaluate(cut.test).exact == whole.trainer.evaluate(whole.test).exact


@pytest.mark.parametrize("name", FITTED)
def test_a_model_that_is_cut_after_it_is_fitted_ends_with_the_same_bits(tmp_path: Path, name: str) -> None:
    whole = make(tmp_path, name, run_dir=str(tmp_path / "whole"))
    whole.fit()
    with pytest.raises(CutError):
        make(tmp_path, name, CutAtTheEnd(0), run_dir=str(tmp_path / "cut")).fit()
    cut = make(tmp_path, name, run_dir=str(tmp_path / "cut"))
    cut.fit()
    assert_same_training(cut.trainer, whole.trainer)
    assert cut.trainer.evaluate(cut.test).exact == whole.trainer.evaluate(whole.test).exact
