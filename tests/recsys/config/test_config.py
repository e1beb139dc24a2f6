"""Settings: where they come from, which one wins, and who has read them."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.data.small import Context, General, PointWise, Sequential
from treadle.errors import ConfigError
from treadle.recsys import Config, EvaluatorType, InputType, ModelType, register_model
from treadle.recsys.config.defaults import default_settings, packaged, packaged_names, read_yaml

DEFAULTS = {
    "gpu_id": "0",
    "worker": 0,
    "use_gpu": True,
    "seed": 2020,
    "state": "INFO",
    "reproducibility": True,
    "checkpoint_dir": "saved",
    "show_progress": True,
    "save_dataset": False,
    "dataset_save_path": None,
    "save_dataloaders": False,
    "dataloaders_save_path": None,
    "log_wandb": False,
    "wandb_project": "recbole",
    "shuffle": True,
    "epochs": 300,
    "train_batch_size": 2048,
    "learner": "adam",
    "learning_rate": 0.001,
    "eval_step": 1,
    "stopping_step": 10,
    "clip_grad_norm": None,
    "weight_decay": 0.0,
    "loss_decimal_place": 4,
    "require_pow": False,
    "enable_amp": False,
    "enable_scaler": False,
    "transform": None,
    "repeatable": False,
    "metrics": ["Recall", "MRR", "NDCG", "Hit", "Precision"],
    "topk": [10],
    "valid_metric": "MRR@10",
    "valid_metric_bigger": True,
    "eval_batch_size": 4096,
    "metric_decimal_place": 4,
    "field_separator": "\t",
    "seq_separator": " ",
    "USER_ID_FIELD": "user_id",
    "ITEM_ID_FIELD": "item_id",
    "RATING_FIELD": "rating",
    "TIME_FIELD": "timestamp",
    "seq_len": None,
    "LABEL_FIELD": "label",
    "threshold": None,
    "NEG_PREFIX": "neg_",
    "numerical_features": [],
    "load_col": {"inter": ["user_id", "item_id"]},
    "unload_col": None,
    "unused_col": None,
    "additional_feat_suffix": None,
    "rm_dup_inter": None,
    "val_interval": None,
    "filter_inter_by_user_or_item": True,
    "user_inter_num_interval": "[0,inf)",
    "item_inter_num_interval": "[0,inf)",
    "alias_of_user_id": None,
    "alias_of_item_id": None,
    "alias_of_entity_id": None,
    "alias_of_relation_id": None,
    "preload_weight": None,
    "normalize_field": None,
    "normalize_all": None,
    "discretization": None,
    "ITEM_LIST_LENGTH_FIELD": "item_length",
    "LIST_SUFFIX": "_list",
    "MAX_ITEM_LIST_LENGTH": 50,
    "POSITION_FIELD": "position_id",
    "HEAD_ENTITY_ID_FIELD": "head_id",
    "TAIL_ENTITY_ID_FIELD": "tail_id",
    "RELATION_ID_FIELD": "relation_id",
    "ENTITY_ID_FIELD": "entity_id",
    "kg_reverse_r": False,
    "entity_kg_num_interval": "[0,inf)",
    "relation_kg_num_interval": "[0,inf)",
    "benchmark_filename": None,
}
"""RecBole's settings and what they are if nobody sets them."""


def test_every_setting_of_recbole_has_its_name_and_default() -> None:
    config = Config(General, "some-data")
    assert {name: config[name] for name in DEFAULTS} == DEFAULTS
    assert config["eval_args"] == {
        "split": {"RS": [0.8, 0.1, 0.1]},
        "order": "RO",
        "group_by": "user",
        "mode": {"valid": "full", "test": "full"},
    }
    negatives = {"distribution": "uniform", "sample_num": 1, "alpha": 1.0, "dynamic": False, "candidate_num": 0}
    assert negatives.items() <= config["train_neg_sample_args"].items()


def test_what_follows_from_the_settings_has_recboles_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_DATA", raising=False)
    config = Config(General, "some-data", config_dict={"eval_args": {"mode": {"valid": "full", "test": "pop50"}}})
    assert config["MODEL_TYPE"] is ModelType.GENERAL
    assert config["MODEL_INPUT_TYPE"] is InputType.PAIRWISE
    assert config["eval_type"] is EvaluatorType.RANKING
    assert (config["model"], config["dataset"], config.model, config.dataset) == ("General", "some-data") * 2
    assert config["valid_neg_sample_args"] == {"distribution": "uniform", "sample_num": "none"}
    assert config["test_neg_sample_args"] == {"distribution": "popularity", "sample_num": 50}
    assert config["data_path"] == str(Path("dataset") / "some-data")
    assert (config["single_spec"], config["local_rank"]) == (True, 0)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_command_line_goes_over_the_dict_the_dict_over_files_and_later_files_over_earlier_ones(
    tmp_path: Path,
) -> None:
    first = write(tmp_path / "a.yaml", "epochs: 1\nseed: 1\nlearning_rate: 1e-5\ntrain_batch_size: 1\n")
    second = write(tmp_path / "b.yaml", "epochs: 2\nseed: 2\nlearning_rate: 1e-4\n")
    config = Config(
        General, "toy", [first, second], {"epochs": 3, "seed": 3}, argv=["--epochs=4", "--weight_decay", "0.5"]
    )
    assert (config["epochs"], config["seed"], config["learning_rate"]) == (4, 3, 1e-4)
    assert (config["train_batch_size"], config["weight_decay"], config["eval_step"]) == (1, 0.5, 1)


def test_the_programs_own_arguments_are_not_read_unless_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "--epochs=7", "--nonsense"])
    assert Config(General, "toy")["epochs"] == 300
    assert Config(General, "toy", argv=sys.argv[1:2])["epochs"] == 7


def test_model_and_data_set_are_found_among_the_settings(tmp_path: Path) -> None:
    @register_model
    class FoundByName(General): ...

    file = write(tmp_path / "a.yaml", "model: FoundByName\ndataset: toy\n")
    config = Config(config_file_list=[file])
    assert (config.model, config.dataset, config.model_class) == ("FoundByName", "toy", FoundByName)
    assert Config(argv=["--dataset=7", "--model=FoundByName"]).dataset == "7"


def test_without_a_model_a_config_serves_to_prepare_data() -> None:
    config = Config(dataset="toy")
    assert (config["model"], config["MODEL_TYPE"], config.model_class) == ("none", ModelType.GENERAL, None)


def test_an_unknown_model_is_an_error_that_names_the_nearest() -> None:
    @register_model
    class LightGraphNet(General): ...

    with pytest.raises(ConfigError, match="there is no model 'lightgraphnet'; did you mean 'LightGraphNet'"):
        Config("lightgraphnet", "toy")
    with pytest.raises(ConfigError, match="there is no model 'Zzz'; there are"):
        Config("Zzz", "toy")


def test_a_config_without_a_data_set_is_an_error() -> None:
    with pytest.raises(ConfigError, match="there is no data set: pass dataset="):
        Config(General)


def test_a_model_that_does_not_say_its_kind_is_an_error() -> None:
    class Kindless:
        input_type = InputType.PAIRWISE

    with pytest.raises(ConfigError, match=r"Kindless\.type is None; a model says with type= which ModelType it is"):
        Config(Kindless, "toy")


def test_a_file_that_is_not_there_or_no_mapping_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the config file .*none\.yaml cannot be read: No such file"):
        Config(General, "toy", [tmp_path / "none.yaml"])
    with pytest.raises(ConfigError, match=r"list\.yaml must hold `name: value` lines, not a list"):
        Config(General, "toy", [write(tmp_path / "list.yaml", "- 1\n")])
    with pytest.raises(ConfigError, match=r"bad\.yaml is no YAML, line 2: expected"):
        Config(General, "toy", [write(tmp_path / "bad.yaml", "a: [1\n")])
    with pytest.raises(ConfigError, match="must be a list of files"):
        Config(General, "toy", "a.yaml")  # type: ignore[arg-type]


def test_a_yaml_file_cannot_run_code(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "epochs: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="is no YAML"):
        Config(General, "toy", [file])


def test_numbers_with_an_exponent_need_no_dot_in_yaml() -> None:
    text = "a: 1e-5\nb: 1e5\nc: -2E+3\nd: 1e\ne: 0x1e3\n"
    assert read_yaml(text, "x") == {"a": 1e-5, "b": 1e5, "c": -2000.0, "d": "1e", "e": 0x1E3}


def test_text_of_a_dict_is_parsed_as_tuners_write_it() -> None:
    config = Config(General, "toy", config_dict={"mlp_hidden_size": "[64,32]", "dropout": "0.5", "note": "abc"})
    assert (config["mlp_hidden_size"], config["dropout"], config["note"]) == ([64, 32], 0.5, "abc")


def test_a_part_of_eval_args_leaves_the_rest_as_the_kind_of_model_has_it() -> None:
    config = Config(Sequential, "toy", config_dict={"eval_args": {"mode": "uni100"}, "loss_type": "CE"})
    assert config["eval_args"]["split"] == {"LS": "valid_and_test"}
    assert config["eval_args"]["order"] == "TO"
    assert config["eval_args"]["mode"] == {"valid": "uni100", "test": "uni100"}


def test_parts_of_eval_args_from_a_file_and_the_command_line_are_put_together(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "eval_args: {order: TO}\n")
    config = Config(General, "toy", [file], argv=["--eval_args={mode: uni5}"])
    assert (config["eval_args"]["order"], config["eval_args"]["mode"]["test"]) == ("TO", "uni5")


def test_other_dicts_are_replaced_as_a_whole() -> None:
    config = Config(General, "ml-100k", config_dict={"load_col": {"inter": ["user_id", "item_id"]}})
    assert config["load_col"] == {"inter": ["user_id", "item_id"]}


def test_the_kind_of_model_and_the_data_set_bring_settings_of_their_own() -> None:
    context = Config(Context, "ml-100k")
    assert (context["metrics"], context["valid_metric"], context["threshold"]) == (
        ["AUC", "LogLoss"],
        "AUC",
        {"rating": 4},
    )
    assert context["eval_args"]["mode"] == {"valid": "labeled", "test": "labeled"}
    assert context["eval_args"]["group_by"] == "none"
    assert context["train_neg_sample_args"]["distribution"] == "none"
    assert list(context["load_col"]) == ["inter", "user", "item"]
    trees = Config("LightGBM", "ml-100k")
    assert (trees["threshold"], trees["load_col"]) == (context["threshold"], context["load_col"])
    assert Config(General, "ml-100k")["normalize_all"] is True
    assert Config(Sequential, "toy", config_dict={"loss_type": "CE"})["repeatable"] is True


def test_a_model_made_from_another_one_has_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"model/Parent": "n_layers: 3\nlearning_rate: 0.5\n"}
    real = packaged

    def with_a_model(name: str) -> Any:
        return read_yaml(texts[name], name) if name in texts else real(name)

    monkeypatch.setattr("treadle.recsys.config.defaults.packaged", with_a_model)

    class Parent(General): ...

    class Child(Parent): ...

    assert (Config(Child, "toy")["n_layers"], Config(Child, "toy")["learning_rate"]) == (3, 0.5)
    assert Config(General, "toy")["n_layers"] is None


def test_every_file_of_settings_can_be_read() -> None:
    for folder in ("dataset", "dataset/ml-100k", "type", "model"):
        for name in packaged_names(folder):
            assert isinstance(packaged(f"{folder}/{name}"), dict)
    assert {"sample", "ml-100k"} <= set(packaged_names("dataset"))
    assert packaged("model/NoSuchModel") is None
    assert default_settings("general", [], "toy")["epochs"] == 300


def test_a_setting_that_nobody_has_set_is_none() -> None:
    config = Config(General, "toy")
    assert config["double_tower"] is None
    assert config.get("double_tower", 5) == 5
    assert "double_tower" not in config
    assert config.learning_rate == 0.001
    with pytest.raises(AttributeError, match="there is no setting 'learning_rat'; did you mean 'learning_rate'"):
        _ = config.learning_rat


def test_a_setting_can_be_set_afterwards() -> None:
    config = Config(General, "toy")
    config["MASK_INDEX"] = "there"
    assert config["MASK_INDEX"] == config.final_config_dict["MASK_INDEX"] == "there"
    with pytest.raises(ConfigError, match="a setting is named by text, not by int"):
        config[3] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["epochs", 5], "config_dict=['epochs', 5] must be a dict of settings by name, such as {'epochs': 5}"),
        ([], "config_dict=[] must be a dict of settings by name, such as {'epochs': 5}"),
        ({5: "epochs"}, "config_dict has the key 5; a setting is named by text, such as 'epochs'"),
    ],
    ids=["list", "empty list", "number"],
)
def test_settings_that_are_no_dict_of_names_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config(General, "toy", config_dict=given)
    assert str(error.value) == message


def test_a_slip_in_a_known_name_is_an_error_once_everything_is_built() -> None:
    config = Config(General, "toy", config_dict={"learning_rat": 5.0})
    with pytest.raises(ConfigError) as error:
        config.check_unread_keys()
    message = "learning_rat=5.0 in config_dict: nothing reads it; did you mean 'learning_rate'?"
    assert str(error.value) == message


def test_a_slip_in_a_name_that_only_the_model_reads_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "my_own_temperatur: 1\n")
    config = Config(General, "toy", [file])
    assert config["my_own_temperature"] is None
    with pytest.raises(ConfigError, match=r"a\.yaml: nothing reads it; did you mean 'my_own_temperature'"):
        config.check_unread_keys()


def test_an_unknown_setting_that_nothing_reads_is_a_warning_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(General, "toy", config_dict={"zebra": 1, "giraffe": 2}, argv=["--okapi=3"])
    assert config["giraffe"] == 2
    with caplog.at_level(logging.WARNING):
        assert config.check_unread_keys() == ["zebra", "okapi"]
    assert caplog.messages == [
        "zebra in config_dict: nothing in General reads it",
        "okapi in the command line: nothing in General reads it",
    ]


def test_a_known_setting_that_this_run_does_not_need_is_nothing_to_speak_of() -> None:
    config = Config(General, "toy", config_dict={"clip_grad_norm": {"max_norm": 1}, "kg_reverse_r": True})
    assert config.check_unread_keys() == []


@pytest.mark.parametrize("read", [lambda c: c["gamma_x"], lambda c: c.get("gamma_x"), lambda c: "gamma_x" in c])
def test_every_way_of_reading_counts(read: Any) -> None:
    config = Config(General, "toy", config_dict={"gamma_x": 1})
    read(config)
    assert config.check_unread_keys() == []


def test_loss_type_decides_the_batches_of_a_model_that_does_not_say() -> None:
    pairs = Config(Sequential, "toy", config_dict={"loss_type": "BPR"})
    assert pairs["MODEL_INPUT_TYPE"] is InputType.PAIRWISE
    assert pairs["train_neg_sample_args"]["sample_num"] == 1
    with pytest.raises(ConfigError, match="Sequential does not say what its batches look like"):
        Config(Sequential, "toy")


def test_a_softmax_over_all_items_needs_no_negatives_and_takes_none() -> None:
    config = Config(Sequential, "toy", config_dict={"loss_type": "CE"})
    assert config["MODEL_INPUT_TYPE"] is InputType.POINTWISE
    assert config["train_neg_sample_args"]["distribution"] == "none"
    Config(Sequential, "toy", config_dict={"loss_type": "CE", "train_neg_sample_args": None})
    with pytest.raises(ConfigError, match="has no use: with loss_type='CE' every item is scored"):
        Config(Sequential, "toy", config_dict={"loss_type": "CE", "train_neg_sample_args": {"sample_num": 2}})


@pytest.mark.parametrize("given", [None, "None", {"distribution": None}, {"distribution": "none"}])
def test_negatives_can_be_left_out(given: Any) -> None:
    config = Config(PointWise, "toy", config_dict={"train_neg_sample_args": given})
    assert config["train_neg_sample_args"]["distribution"] == "none"


@pytest.mark.parametrize("settings", [{"use_gpu": False}, {"gpu_id": ""}])
def test_use_gpu_false_and_an_empty_gpu_id_both_mean_the_cpu(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Config(General, "toy", config_dict=settings)["device"] == torch.device("cpu")


def test_each_process_has_the_gpu_that_gpu_id_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert Config(General, "toy")["device"] == torch.device("cuda", 0)
    assert Config(General, "toy", config_dict={"gpu_id": 3})["device"] == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = Config(General, "toy", argv=["--gpu_id=2,3"])
    assert config["device"] == torch.device("cuda", 3)
    assert (config["single_spec"], config["local_rank"], config["world_size"]) == (False, 1, 2)


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="gpu_id='5': there is no GPU 5; this machine has 1"):
        Config(General, "toy", config_dict={"gpu_id": "5"})
    with pytest.raises(ConfigError, match="gpu_id='first' must be numbers of GPUs"):
        Config(General, "toy", config_dict={"gpu_id": "first"})


def test_a_config_touches_neither_the_environment_nor_the_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = torch.get_rng_state()
    Config(General, "toy", config_dict={"gpu_id": "0"})
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert torch.equal(torch.get_rng_state(), before)


def test_the_environment_names_the_data_only_where_nobody_has_chosen_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Config(General, "toy")["data_path"] == str(tmp_path / "toy")
    assert Config(General, "toy", config_dict={"data_path": "mine"})["data_path"] == str(Path("mine") / "toy")
    (tmp_path / "dataset" / "toy").mkdir(parents=True)
    assert Config(General, "toy")["data_path"] == str(Path("dataset") / "toy")


def test_a_config_as_plain_data_makes_the_same_config_again() -> None:
    config = Config(Sequential, "toy", config_dict={"loss_type": "CE", "my_size": 4, "eval_args": {"mode": "uni9"}})
    elsewhere = Config(General, "toy", config_dict={"data_path": "some/where"})
    own = Config(type("Own", (General,), {"default_settings": {"train_neg_sample_args": None}}), "toy")
    for one in (config, elsewhere, own):
        again = Config(one.model_class, "toy", config_dict=one.plain())
        assert again.final_config_dict == one.final_config_dict
        assert again.plain() == one.plain()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_batch_size": 0}, "train_batch_size=0 must be at least 1"),
        ({"eval_batch_size": None}, "eval_batch_size=None in config_dict must be a number"),
        ({"stopping_step": "~"}, "stopping_step=None in config_dict must be a number"),
        ({"MAX_ITEM_LIST_LENGTH": 0}, "MAX_ITEM_LIST_LENGTH=0 must be at least 1"),
        ({"epochs": -1}, "epochs=-1 must be at least 0"),
        ({"epochs": "many"}, "epochs='many' in config_dict must be a number"),
    ],
)
def test_a_number_that_cannot_be_meant_is_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config(General, "toy", config_dict=settings)
    assert str(error.value) == message


def test_a_config_tells_what_was_given() -> None:
    text = str(Config(General, "toy", config_dict={"epochs": 7}))
    assert text.splitlines()[0] == "General on toy; * marks what was given"
    assert "* epochs = 7" in text
    assert "  seed = 2020" in text
    assert repr(Config(General, "toy")) == "Config(model='General', dataset='toy')"


def test_a_truth_value_of_a_model_means_the_same_wherever_it_is_given(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "norm_first: 'off'")
    given: list[dict[str, Any]] = [
        {"argv": ["--norm_first=off"]},
        {"config_dict": {"norm_first": "False"}},
        {"config_file_list": [file]},
    ]
    for options in given:
        assert Config("SASRec", "small", **options)["norm_first"] is False
    assert Config("SASRec", "small", argv=["--my_flag=off"])["my_flag"] is False, "as in a file"
    with pytest.raises(ConfigError, match=r"^norm_first='maybe' in the command line must be True or False$"):
        Config("SASRec", "small", argv=["--norm_first=maybe"])


def test_metrics_that_are_no_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^metrics=2.5 must be names of metrics, such as \['NDCG', 'Recall'\]$"):
        Config("BPR", "small", config_dict={"metrics": 2.5})
