"""Trainers with a `fit` in RecBole's manner: what it calls is there, and what nothing calls is refused."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.recsys.trainer.runs import make
from treadle.errors import ConfigError
from treadle.recsys import Trainer, compat
from treadle.recsys.models.general_recommender import BPR

with compat.recbole_names():
    from recbole.utils import WandbLogger, early_stopping


class ByEpochs(Trainer):
    """Has a `fit` that calls what RecBole's calls."""

    def fit(  # type: ignore[override]
        self,
        train_data: Any,
        valid_data: Any = None,
        verbose: bool = True,
        saved: bool = True,
        show_progress: bool = False,
        callback_fn: Any = None,
    ) -> Any:
        self.eval_collector.data_collect(train_data)
        self.wandblogger.set_steps()
        for epoch in range(self.start_epoch, self.epochs):
            loss = self._train_epoch(train_data, epoch, show_progress=show_progress)
            self.train_loss_dict[epoch] = sum(loss) if isinstance(loss, tuple) else loss
            self._add_train_loss_to_tensorboard(epoch, loss)
            self.wandblogger.log_metrics({"epoch": epoch, "train_loss": loss}, head="train")
            score, result = self._valid_epoch(valid_data, show_progress=show_progress)
            self.tensorboard.add_scalar("Vaild_score", score, epoch)
            self.best_valid_score, self.cur_step, stop, update = early_stopping(
                score, self.best_valid_score, self.cur_step, max_step=self.stopping_step, bigger=True
            )
            if update:
                self.best_valid_result = result
                if saved:
                    self._save_checkpoint(epoch, verbose=verbose)
            if stop:
                break
        self._add_hparam_to_tensorboard(self.best_valid_score)
        return self.best_valid_score, self._map_reduce(self.best_valid_result, 1)


def test_a_fit_in_recboles_manner_ends_as_treadles_own(tmp_path: Path) -> None:
    own, plain = make(tmp_path, kind=ByEpochs), make(tmp_path)
    assert own.fit() == plain.fit()
    assert own.trainer.train_loss_dict == plain.trainer.train_loss_dict
    assert own.trainer.evaluate(own.test) == plain.trainer.evaluate(plain.test)


def test_its_curves_are_written_where_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written: list[Any] = []
    run = SimpleNamespace(
        log=lambda metrics, commit: written.append(metrics), define_metric=lambda *a, **k: None, summary={}
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None, init=lambda **given: run))
    own = make(tmp_path, kind=ByEpochs, log_wandb=True, log_tensorboard=True)
    own.fit()
    assert [one["train/epoch"] for one in written] == [0, 1, 2]
    own.trainer.wandblogger.log_eval_metrics({"ndcg@5": 0.5})
    assert run.summary == {"eval/ndcg@5": 0.5}
    own.trainer.tensorboard.close()
    assert list((tmp_path / "log_tensorboard").rglob("events*"))
    quiet = WandbLogger(make(tmp_path).trainer.config)
    quiet.log_metrics({"loss": 1.0})
    quiet.log_eval_metrics({"loss": 1.0})
    assert len(written) == 3


class OwnCurves(Trainer):
    def _add_train_loss_to_tensorboard(self, epoch_idx: int, losses: Any, tag: str = "Loss/Train") -> None:
        raise AssertionError("nobody calls it")


def test_a_method_that_only_recboles_fit_would_call_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"OwnCurves\._add_train_loss_to_tensorboard is called by RecBole's fit alone"
    ):
        make(tmp_path, kind=OwnCurves)
    make(tmp_path, kind=type("Both", (OwnCurves, ByEpochs), {}))


class Backwards(Trainer):
    """Scores rows the other way round, a few at a time."""

    def _spilt_predict(self, interaction: Any, batch_size: int) -> torch.Tensor:
        return -super()._spilt_predict(interaction, batch_size)


class Pairs(BPR):
    """Scores pairs only."""

    def full_sort_predict(self, interaction: Any) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("mode", ["full", "uni5", "labeled"])
def test_rows_are_scored_by_an_overridden_spilt_predict(mode: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"eval_args": {"mode": mode}, "epochs": 0, "embedding_size": 8}
    if mode == "labeled":
        given |= {"metrics": ["AUC"], "valid_metric": "AUC", "threshold": {"rating": 3}, "load_col": {"inter": "*"}}
    else:
        given |= {"metrics": ["GAUC"], "valid_metric": "GAUC"}
    plain, turned = make(tmp_path, Pairs, **given), make(tmp_path, Pairs, kind=Backwards, **given)
    name = given["valid_metric"].lower()
    found = [run.trainer.evaluate(run.test, load_best_model=False)[name] for run in (plain, turned)]
    assert sum(found) == pytest.approx(1.0, abs=2e-4)
    assert found[0] != found[1]
