"""The settings that reach the core, the optimizers by name, and what is refused before training starts."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.recsys.trainer.runs import make, parts
from treadle.errors import CheckpointError, ConfigError, UnknownMetricError
from treadle.recsys import Interaction, ModelType, Trainer, get_trainer, register_trainer
from treadle.recsys.models.general_recommender import BPR
from treadle.recsys.trainers import RecVAETrainer, TraditionalTrainer
from treadle.recsys.trainers.loop.optimizers import LEARNERS, ROW_WISE

# Optimizers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", [name for name in LEARNERS if name not in ("sparse_adam", *ROW_WISE)])
def test_a_learner_is_made_by_its_name_and_trains(tmp_path: Path, learner: str) -> None:
    run = make(tmp_path, learner=learner.upper(), learning_rate=0.01, weight_decay=0.001, epochs=1)
    assert type(run.trainer.optimizer) is LEARNERS[learner]
    assert run.trainer.optimizer.defaults["weight_decay"] == 0.001
    before = run.model.user_embedding.weight.clone()
    run.fit(saved=False)
    assert not torch.equal(run.model.user_embedding.weight, before)


class Sparse(BPR):
    """Embeddings with sparse gradients."""

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.user_embedding.sparse = self.item_embedding.sparse = True


def test_sparse_adam_trains_embeddings_with_sparse_gradients(tmp_path: Path) -> None:
    run = make(tmp_path, Sparse, learner="sparse_adam", learning_rate=0.01, epochs=2, embedding_size=8)
    run.fit(saved=False)
    assert run.trainer.train_loss_dict[1] < run.trainer.train_loss_dict[0]


def test_sparse_adam_is_refused_where_gradients_are_dense(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"is for embeddings with sparse=True only, and user_embedding\.weight of BPR"
    ):
        make(tmp_path, learner="sparse_adam")
    with pytest.raises(ConfigError, match=r"weight_decay=0\.1: sparse_adam has none"):
        make(tmp_path, Sparse, learner="sparse_adam", weight_decay=0.1, embedding_size=8)


@pytest.mark.parametrize("learner", ROW_WISE)
@pytest.mark.parametrize("model", ["BPR", "DeepFM"])
def test_a_learner_of_rows_trains_models_of_the_door(tmp_path: Path, learner: str, model: str) -> None:
    given: dict[str, Any] = {} if model == "BPR" else {"mlp_hidden_size": [8], "threshold": {"rating": 3}}
    given |= {} if model == "BPR" else {"valid_metric": "AUC", "metrics": ["AUC"], "eval_args": {"mode": "labeled"}}
    run = make(tmp_path, model, learner=learner, learning_rate=0.05, epochs=2, embedding_size=8, **given)
    assert type(run.trainer.optimizer) is LEARNERS[learner]
    run.fit(saved=False)
    assert run.trainer.train_loss_dict[1] < run.trainer.train_loss_dict[0]


@pytest.mark.parametrize("learner", ROW_WISE)
def test_a_row_that_is_in_no_batch_does_not_move(tmp_path: Path, learner: str) -> None:
    run = make(
        tmp_path, learner=learner, learning_rate=0.05, epochs=1, embedding_size=8, max_steps=1, train_batch_size=2
    )
    before = run.model.user_embedding.weight.detach().clone()
    run.fit(saved=False)
    moved = (run.model.user_embedding.weight != before).any(dim=1).sum().item()
    assert 1 <= moved <= 2


@pytest.mark.parametrize("learner", ROW_WISE)
def test_a_learner_of_rows_is_refused_where_all_rows_would_move(tmp_path: Path, learner: str) -> None:
    with pytest.raises(ConfigError, match=rf"weight_decay=0\.1: {learner} moves only the rows that a batch has"):
        make(tmp_path, learner=learner, weight_decay=0.1)
    with pytest.raises(ConfigError, match=rf"learner='{learner}' is for embeddings, and MultiVAE has none"):
        make(tmp_path, "MultiVAE", learner=learner, mlp_hidden_size=[8], latent_dimension=4)
    with pytest.raises(ConfigError, match=rf"{learner} moves only .* user_embedding\.weight of LightGCN has all"):
        make(tmp_path, "LightGCN", learner=learner, embedding_size=8).fit(saved=False)


@pytest.mark.parametrize("clip", [{"clip_grad_norm": {"max_norm": 0.01}}, {"gradient_clip_value": 1e-4}])
def test_gradients_of_rows_are_clipped_as_whole_ones_are(tmp_path: Path, clip: dict[str, Any]) -> None:
    # By SGD, which moves weights by their gradients, whatever their size.
    found = []
    for model in (BPR, Sparse):
        run = make(tmp_path, model, learner="sgd", learning_rate=10.0, embedding_size=8, max_steps=3, **clip)
        run.fit(saved=False)
        found.append(run.model.user_embedding.weight.detach())
    torch.testing.assert_close(*found)


def test_a_learner_that_does_not_exist_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner='adamm' does not exist; did you mean 'adamw?'\?"):
        make(tmp_path, learner="adamm")


@pytest.mark.parametrize(("name", "value"), [("learning_rate", -0.1), ("weight_decay", float("nan"))])
def test_a_number_that_no_optimizer_takes_is_refused(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value!r} must be a number from 0"):
        make(tmp_path, **{name: value})


def test_build_optimizer_takes_its_arguments_by_name(tmp_path: Path) -> None:
    run = make(tmp_path)
    made = run.trainer._build_optimizer(params=run.model.item_embedding.parameters(), learner="sgd", learning_rate=0.5)
    assert isinstance(made, torch.optim.SGD)
    assert made.param_groups[0]["lr"] == 0.5
    assert len(made.param_groups[0]["params"]) == 1
    with pytest.raises(ConfigError, match="_build_optimizer takes no 'momentum'"):
        run.trainer._build_optimizer(momentum=0.9)


def test_two_penalties_at_once_are_warned_of(tmp_path: Path, caplog: Any) -> None:
    make(tmp_path, "LightGCN", weight_decay=0.1)
    assert "reg_weight=1e-05 and weight_decay=0.1 are both set" in caplog.text


def test_a_gradient_is_clipped_as_torch_clips_it(tmp_path: Path) -> None:
    runs = {}
    clips = {"none": None, "norm": {"max_norm": 1e-3}, "number": 1e-3}
    for name, clip in {**clips, "largest": {"max_norm": 1e-3, "norm_type": float("inf")}}.items():
        run = make(tmp_path, learner="sgd", learning_rate=1.0, epochs=1, clip_grad_norm=clip, train_batch_size=10_000)
        before = {key: value.clone() for key, value in run.model.state_dict().items()}
        run.fit(saved=False)
        moved = [value - before[key] for key, value in run.model.state_dict().items()]
        runs[name] = torch.cat([one.reshape(-1) for one in moved])
    assert runs["norm"].norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert torch.equal(runs["norm"], runs["number"])
    assert runs["largest"].abs().max().item() == pytest.approx(1e-3, rel=1e-3)
    assert runs["none"].norm() > 1e-2


@pytest.mark.parametrize("clip", [{"max_nrom": 1}, -1.0, True])
def test_a_clip_that_cannot_be_meant_is_refused(tmp_path: Path, clip: Any) -> None:
    with pytest.raises(ConfigError, match=r"clip_grad_norm=.* must be a number above 0, or a dict such as"):
        make(tmp_path, clip_grad_norm=clip).fit(saved=False)


# Precision ----------------------------------------------------------------------------------------------------


def test_bf16_trains_on_the_cpu_and_ends_near_fp32(tmp_path: Path) -> None:
    given: dict[str, Any] = {"mf_embedding_size": 8, "mlp_embedding_size": 8, "mlp_hidden_size": [16], "epochs": 2}
    full, half = (make(tmp_path, "NeuMF", precision=precision, **given) for precision in ("fp32", "bf16"))
    full.fit()
    half.fit()
    assert half.trainer._core.precision.kind == "bf16"
    losses = half.trainer.train_loss_dict
    assert losses != full.trainer.train_loss_dict
    assert losses[1] == pytest.approx(full.trainer.train_loss_dict[1], rel=0.02)
    assert half.model.mlp_layers.mlp_layers[1].weight.dtype == torch.float32


@pytest.mark.parametrize("model", ["LightGCN", "SGL", "NGCF", "GCMC", "SpectralCF", "CDAE"])
def test_a_model_that_recbole_cannot_train_in_mixed_precision_trains(tmp_path: Path, model: str) -> None:
    run = make(tmp_path, model, enable_amp=True, epochs=1)
    run.fit(saved=False)
    assert run.trainer._core.precision.kind == "bf16"
    assert run.trainer.train_loss_dict[0] == run.trainer.train_loss_dict[0]


def test_enable_amp_leaves_a_loop_of_ones_own_to_itself(tmp_path: Path) -> None:
    class Loop(Trainer):
        def _train_epoch(self, train_data: Any, epoch_idx: int) -> float:  # type: ignore[override]
            assert not torch.is_autocast_enabled("cpu")
            return 0.0

    run = make(tmp_path, kind=Loop, enable_amp=True, epochs=1)
    assert run.trainer.enable_amp is True
    run.fit(saved=False)


def test_settings_reach_the_core(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1, deterministic=True, execution="eager", run_dir=str(tmp_path / "own"), seed=7)
    run.fit()
    core = run.trainer._core
    assert (core.deterministic, core.execution, core.seed) == (True, "eager", 7)
    assert core.run_dir == tmp_path / "own"
    assert Path(run.trainer.saved_model_file) == tmp_path / "own" / "BPR.pth"


@pytest.mark.parametrize(("name", "value"), [("precision", "fp17"), ("execution", "fast"), ("on_nonfinite", "ignore")])
def test_a_choice_that_does_not_exist_is_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='{value}'"):
        make(tmp_path, **{name: value}).fit(saved=False)


# Before training starts ---------------------------------------------------------------------------------------


class Untrained(BPR):
    """Fails if somebody trains it."""

    def calculate_loss(self, interaction: Interaction) -> Any:
        raise AssertionError("training has started")


def refused(tmp_path: Path, **given: Any) -> Any:
    return make(tmp_path, Untrained, embedding_size=8, **given)


def test_a_setting_that_is_nearly_a_known_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learning_rat=5\.0 in config_dict: nothing reads it; did you mean"):
        refused(tmp_path, learning_rat=5.0).fit()


def test_a_setting_that_nobody_reads_is_warned_of(tmp_path: Path, caplog: Any) -> None:
    make(tmp_path, epochs=1, my_own_setting=3).fit(saved=False)
    assert "my_own_setting in config_dict: nothing in BPR reads it" in caplog.text


def test_a_setting_that_a_trainer_of_ones_own_reads_is_fine(tmp_path: Path, caplog: Any) -> None:
    class Own(Trainer):
        def __init__(self, config: Any, model: nn.Module) -> None:
            super().__init__(config, model)
            self.every = config["learning_rates"]

    make(tmp_path, kind=Own, epochs=1, learning_rates=3).fit(saved=False)
    assert "learning_rates" not in caplog.text


def test_topk_above_the_number_of_items_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="31 is more than the 30 items"):
        refused(tmp_path, topk=[31], valid_metric="NDCG@31")


def test_a_valid_metric_that_is_not_calculated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownMetricError, match=r"NDCG@20.*; add 20 to topk"):
        refused(tmp_path, valid_metric="NDCG@20")


def test_a_valid_metric_that_an_own_evaluation_does_not_return_is_refused(tmp_path: Path) -> None:
    class Own(Trainer):
        def evaluate(self, eval_data: Any, load_best_model: bool = True) -> Any:  # type: ignore[override]
            return {"ndcg@10": 0.5}

    with pytest.raises(UnknownMetricError, match="valid_metric='ndcg@5' is not among what the evaluation returned"):
        make(tmp_path, kind=Own, epochs=1).fit(saved=False)


def test_a_checkpoint_dir_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint_dir=.*cannot be written to"):
        refused(tmp_path, checkpoint_dir=str(tmp_path / "file" / "saved")).fit()


# Which trainer ------------------------------------------------------------------------------------------------


def test_get_trainer_takes_settings_and_a_model(tmp_path: Path) -> None:
    assert type(make(tmp_path).trainer) is Trainer
    assert type(make(tmp_path, "EASE").trainer) is TraditionalTrainer
    assert type(make(tmp_path, "RecVAE").trainer) is RecVAETrainer


def test_get_trainer_takes_a_kind_and_a_name_as_recbole_has_it(tmp_path: Path) -> None:
    config, *_ = parts(tmp_path)
    assert get_trainer(config["MODEL_TYPE"], config["model"]) is Trainer
    assert get_trainer(ModelType.TRADITIONAL, "EASE") is TraditionalTrainer
    assert get_trainer(ModelType.GENERAL, "RecVAE") is RecVAETrainer
    with pytest.raises(ConfigError, match="get_trainer takes settings and a model, or a ModelType and a name; not str"):
        get_trainer("BPR", config)


def test_a_trainer_of_ones_own_is_found_by_the_name_of_its_model(tmp_path: Path) -> None:
    class UntrainedTrainer(Trainer):
        pass

    from treadle.recsys.trainers import registry

    try:
        register_trainer(UntrainedTrainer)
        assert type(refused(tmp_path).trainer) is UntrainedTrainer
    finally:
        registry._trainers.pop("UntrainedTrainer")
    with pytest.raises(ConfigError, match="Nothing: a trainer is named after its model"):
        register_trainer(type("Nothing", (Trainer,), {}))


@pytest.mark.parametrize("passes", [0, 1.5, None])
def test_passes_of_recvae_that_cannot_be_meant_are_refused(tmp_path: Path, passes: Any) -> None:
    with pytest.raises(ConfigError, match=f"n_enc_epochs={passes!r} must be a whole number from 1"):
        make(tmp_path, "RecVAE", n_enc_epochs=passes)


def test_logging_is_left_alone(tmp_path: Path) -> None:
    before = (logging.root.level, list(logging.root.handlers))
    make(tmp_path, epochs=1).fit(saved=False)
    assert (logging.root.level, list(logging.root.handlers)) == before


# Destinations -------------------------------------------------------------------------------------------------


def test_metrics_are_written_for_tensorboard_in_the_folder_of_the_run(tmp_path: Path) -> None:
    run = make(tmp_path, epochs=1, log_tensorboard=True, run_dir=str(tmp_path / "run"))
    run.fit()
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"valid_ndcg@5" in events.read_bytes()


def test_metrics_are_sent_to_weights_and_biases_with_the_settings(tmp_path: Path, monkeypatch: Any) -> None:
    from treadle.writers import EventWriter

    made: list[Any] = []

    class Standing(EventWriter):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append((args, kwargs))

        def write(self) -> None: ...

    monkeypatch.setattr("treadle.recsys.trainers.trainer.WandbWriter", Standing)
    make(tmp_path, epochs=1, log_wandb=True, wandb_project="mine").fit(saved=False)
    ((project,), settings) = made[0]
    assert project == "mine"
    assert settings["config"]["embedding_size"] == 8
    assert settings["name"].startswith("BPR-")


def test_settings_that_only_the_trainer_reads_are_known(tmp_path: Path, caplog: Any) -> None:
    make(tmp_path, epochs=1, run_dir=str(tmp_path / "run"), save_every="1 epoch", execution="eager").fit()
    assert "nothing" not in caplog.text


def test_the_tail_and_the_weights_of_users_are_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen = {"metrics": ["TailPercentage", "GAUC"], "valid_metric": "GAUC", "eval_args": {"mode": "uni5"}, "epochs": 1}
    run = make(tmp_path, **chosen, tail_ratio=1, gauc_weight="positives")
    _, result = run.fit(saved=False)
    assert result["tailpercentage@5"] == 1.0
    assert not caplog.records
    with pytest.raises(ConfigError, match="gauc_weight='clicks': users weigh by 'impressions' or by 'positives'"):
        make(tmp_path, **chosen, gauc_weight="clicks").fit(saved=False)
