"""The value of a setting: what text stands for, and what cannot be meant."""

from pathlib import Path
from typing import Any

import pytest

from treadle.errors import ConfigError
from treadle.recsys.config.values import command_line_settings, model_value, parse_arguments, parse_literal, typed_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-0.5", -0.5),
        ("1e-5", 1e-5),
        ("True", True),
        ("false", False),
        ("None", None),
        ("~", None),
        ("[64, 32]", [64, 32]),
        ("(0, 1)", (0, 1)),
        ("{'RS': [0.8, 0.1, 0.1]}", {"RS": [0.8, 0.1, 0.1]}),
        ("{mode: uni100, order: TO}", {"mode": "uni100", "order": "TO"}),
        ("[Recall, NDCG]", ["Recall", "NDCG"]),
        ("'quoted'", "quoted"),
        ("dataset/ml-100k", "dataset/ml-100k"),
        ("[10,inf)", "[10,inf)"),
        ("[0,inf]", [0, "inf"]),
        ("1j", "1j"),
        ("b'x'", "b'x'"),
        ("{1, 2}", "{1, 2}"),
        ("a=b", "a=b"),
        ("", ""),
        ("[" * 10_000, "[" * 10_000),
    ],
)
def test_text_stands_for_a_literal_or_for_itself(text: str, value: Any) -> None:
    assert parse_literal(text) == value


@pytest.mark.parametrize("text", ["__import__('os').getcwd()", "open('x')", "[].__class__", "2 ** 9", "print(1)"])
def test_text_is_never_evaluated(text: str) -> None:
    assert parse_literal(text) == text


def test_text_is_kept_where_the_default_is_text() -> None:
    assert typed_value("data_path", "2020", "dataset/", "x") == "2020"
    assert typed_value("user_inter_num_interval", "[3,5]", "[0,inf)", "x") == "[3,5]"
    assert typed_value("data_path", Path("a") / "b", "dataset/", "x") == str(Path("a") / "b")


def test_nothing_can_be_given_for_text() -> None:
    assert typed_value("user_inter_num_interval", "None", "[0,inf)", "x") is None
    assert typed_value("user_inter_num_interval", None, "[0,inf)", "x") is None


def test_a_number_takes_the_type_of_its_default() -> None:
    assert typed_value("epochs", "1e2", 300, "x") == 100
    assert isinstance(typed_value("epochs", "1e2", 300, "x"), int)
    assert isinstance(typed_value("weight_decay", 1, 0.0, "x"), float)
    assert typed_value("show_progress", "false", True, "x") is False


@pytest.mark.parametrize(
    ("name", "value", "default", "message"),
    [
        ("learning_rate", "fast", 0.001, "learning_rate='fast' in config_dict must be a number"),
        ("learning_rate", True, 0.001, "learning_rate=True in config_dict must be a number"),
        ("epochs", 2.5, 300, "epochs=2.5 in config_dict must be a whole number"),
        ("shuffle", 1, True, "shuffle=1 in config_dict must be True or False"),
        ("shuffle", "maybe", True, "shuffle='maybe' in config_dict must be True or False"),
        ("threshold", 4, None, "threshold=4 in config_dict must be a mapping, or None"),
        (
            "train_neg_sample_args",
            {"dynamic": "maybe"},
            {"dynamic": False, "sample_num": 1},
            "train_neg_sample_args.dynamic='maybe' in config_dict must be True or False",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error(name: str, value: Any, default: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        typed_value(name, value, default, "config_dict")
    assert str(error.value) == message


def test_arguments_are_pairs_of_names_and_values() -> None:
    arguments = ["--epochs=5", "--data_path", "a/b", "--note=x=y"]
    assert parse_arguments(arguments) == {"epochs": "5", "data_path": "a/b", "note": "x=y"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["epochs=5"], "'epochs=5' on the command line is no setting; write --name=value"),
        (["--epochs"], "'--epochs' on the command line has no value; write --epochs=value"),
        (["--epochs", "--seed=1"], "'--epochs' on the command line has no value; write --epochs=value"),
        (["--epochs=5", "--epochs=6"], "--epochs is given twice on the command line: '5' and '6'"),
    ],
)
def test_an_argument_that_is_no_setting_is_an_error(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_arguments(arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("command", "taken"),
    [
        (["train.py", "--epochs=5", "--eval_args={'mode': 'full'}"], ["--epochs=5", "--eval_args={'mode': 'full'}"]),
        (["run.py", "--model=BPR", "--config_files=a.yaml b.yaml", "--nproc=2", "--ip=x"], ["--model=BPR"]),
        (["treadle/train.py", "--epochs=5"], ["--epochs=5"]),
        (["/usr/bin/pytest", "--durations=5"], []),
        (["/x/site-packages/pytest/__main__.py", "--durations=5"], []),
        (["/x/ipykernel_launcher.py", "--f=/tmp/kernel.json"], []),
        (["/x/treadle/cli/__main__.py", "recsys", "--epochs=5"], []),
        ([""], []),
        ([], []),
    ],
)
def test_settings_are_found_among_the_arguments_of_a_program(command: list[str], taken: list[str]) -> None:
    assert command_line_settings(command) == taken


def test_arguments_that_are_no_settings_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        assert command_line_settings(["train.py", "--epochs", "5", "-v", "--seed=1"]) == ["--seed=1"]
    assert "['--epochs', '5', '-v'] on the command line are no settings, which are written --name=value" in caplog.text


@pytest.mark.parametrize("word", ["off", "no", "false", "False", "OFF"])
def test_words_for_no_are_false_as_in_a_file(word: str) -> None:
    assert parse_literal(word) is False
    assert typed_value("shuffle", word, True, "x") is False
    assert model_value("norm_first", word, False, "x") is False
    parts = typed_value("train_neg_sample_args", {"dynamic": word, "alpha": 2}, {"dynamic": True, "alpha": 1.0}, "x")
    assert parts == {"dynamic": False, "alpha": 2}


def test_the_settings_of_a_model_have_the_types_of_what_comes_with_it() -> None:
    assert model_value("n_layers", "3", 2, "x") == 3
    assert model_value("reg_weight", "0.5", 2, "x") == 0.5
    assert model_value("n_layers", None, 2, "x") is None
    assert model_value("xgb_verbose_eval", "off", 100, "x") is False
    assert model_value("loss_type", "no", "CE", "x") == "no"
    assert model_value("mlp_hidden_size", "[64]", [128, 128], "x") == [64]


@pytest.mark.parametrize(
    ("name", "value", "default", "message"),
    [
        ("norm_first", "maybe", False, "norm_first='maybe' in a.yaml must be True or False"),
        ("n_layers", "deep", 2, "n_layers='deep' in a.yaml must be a number"),
        ("n_layers", True, 2, "n_layers=True in a.yaml must be a number"),
        ("mlp_hidden_size", 64, [128, 128], "mlp_hidden_size=64 in a.yaml must be a list, such as [128, 128]"),
    ],
)
def test_a_setting_of_a_model_of_the_wrong_type_is_an_error(name: str, value: Any, default: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        model_value(name, value, default, "a.yaml")
    assert str(error.value) == message
