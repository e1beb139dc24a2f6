"""What models of a benchmark share, and what each has of its own."""

from pathlib import Path

import pytest

from tests.recsys.bench.tiny import HERE, protocol, settings
from tests.recsys.compat.written_for_recbole import write_package
from treadle.errors import ConfigError
from treadle.recsys.bench import Protocol
from treadle.recsys.compat.package import VARIABLE


def test_what_is_measured_is_the_same_for_every_model(tmp_path: Path) -> None:
    made = protocol(tmp_path, ["BPR", "KGAT"])
    configs = [made.config(name) for name in made.models]
    for name in ("eval_args", "metrics", "topk", "valid_metric", "repeatable", "kg_unlinked_items"):
        assert configs[0][name] == configs[1][name] == made.shared.get(name, configs[0][name])
    assert made.shared["kg_unlinked_items"] == "keep"
    assert made.shared["eval_args"]["order"] == "RO"


def test_a_sequential_model_has_all_tested_in_the_order_of_time(tmp_path: Path) -> None:
    made = protocol(tmp_path, ["BPR", "GRU4Rec"])
    assert made.shared["eval_args"]["split"] == {"LS": "valid_and_test"}
    assert made.config("BPR")["eval_args"] == made.config("GRU4Rec")["eval_args"]
    assert any(
        note.startswith("eval_args is {'split': {'LS': 'valid_and_test'}") and "BPR alone would have" in note
        for note in made.notes
    )


@pytest.mark.parametrize("models", [["BPR", "GRU4Rec"], ["GRU4Rec", "BPR", "SASRec"]])
def test_a_sequential_model_does_not_decide_that_seen_items_are_recommended_by_all(
    tmp_path: Path, models: list[str]
) -> None:
    made = protocol(tmp_path, models)
    assert made.shared["repeatable"] is False
    assert all(made.config(name)["repeatable"] is False for name in made.models)
    others = ", ".join(name for name in models if name != "BPR")
    assert f"repeatable is False for all models: {others} alone would have True." in made.notes


def test_what_all_models_have_by_default_or_the_command_says_is_what_counts(tmp_path: Path) -> None:
    assert protocol(tmp_path, ["GRU4Rec", "SASRec"]).shared["repeatable"] is True
    made = protocol(tmp_path, ["BPR", "GRU4Rec"], repeatable=True)
    assert made.shared["repeatable"] is True
    assert not any(note.startswith("repeatable") for note in made.notes)


def test_settings_that_one_model_brings_are_not_those_of_the_others(tmp_path: Path) -> None:
    given = {name: value for name, value in settings(tmp_path).items() if name not in ("metrics", "topk")}
    del given["valid_metric"]
    for models in ([f"{HERE}.Opinionated", "BPR"], ["BPR", f"{HERE}.Opinionated"]):
        made = Protocol(models, "tiny", config_dict=given)
        assert (made.shared["metrics"], made.shared["topk"]) == (["Recall", "MRR", "NDCG", "Hit", "Precision"], [10])
        assert made.shared["valid_metric"] == "MRR@10"
        assert made.shared["cold_users"] == "error"
        assert "topk is [10] for all models: Opinionated alone would have [3]." in made.notes
    assert Protocol([f"{HERE}.Opinionated"], "tiny", config_dict=given).shared["topk"] == [3]


def test_a_model_does_not_choose_the_rows_that_it_is_tested_on(tmp_path: Path) -> None:
    made = protocol(tmp_path, [f"{HERE}.Choosy", "BPR"])
    assert all(made.config(name)["item_inter_num_interval"] == "[0,inf)" for name in made.models)
    assert all(made.config(name).seed_of_split == 2020 for name in made.models)
    note = "item_inter_num_interval is '[0,inf)' for all models: Choosy alone would have '[3,inf)'."
    assert note in made.notes
    assert "item_inter_num_interval" not in protocol(tmp_path, ["BPR"]).shared


def test_a_model_of_clicks_in_a_sequence_does_not_take_the_ranking_from_others(tmp_path: Path) -> None:
    given = {name: value for name, value in settings(tmp_path).items() if name not in ("metrics", "valid_metric")}
    made = Protocol(["DIN", "BPR"], "tiny", config_dict={**given, "topk": [10]})
    assert made.shared["eval_args"]["mode"] == {"valid": "full", "test": "full"}
    assert made.shared["valid_metric"] == "MRR@10"
    assert Protocol(["DIN", "DIEN"], "tiny", config_dict=given).shared["eval_args"]["mode"]["test"] == "uni100"


def test_models_of_clicks_alone_are_tested_by_labels(tmp_path: Path) -> None:
    given = {"metrics": ["AUC"], "valid_metric": "AUC", "threshold": {"rating": 3}}
    assert protocol(tmp_path, ["FM", "LightGBM"], **given).shared["eval_args"]["mode"]["test"] == "labeled"


def test_a_setting_can_be_that_of_one_model(tmp_path: Path) -> None:
    made = protocol(tmp_path, ["BPR", "LightGCN"], **{"BPR.embedding_size": 4})
    assert (made.config("BPR")["embedding_size"], made.config("LightGCN")["embedding_size"]) == (4, 8)


def test_the_parts_of_the_data_are_the_same_for_every_seed(tmp_path: Path) -> None:
    made = protocol(tmp_path, ["BPR"])
    first, second = (made.config("BPR", seed) for seed in (1, 2))
    assert (first["seed"], second["seed"]) == (1, 2)
    assert first.seed_of_split == second.seed_of_split == 2020


def test_a_class_is_named_in_full(tmp_path: Path) -> None:
    made = protocol(tmp_path, [f"{HERE}.Otherwise"])
    assert made.models == ["Otherwise"]
    assert made.config("Otherwise").model_class.__module__ == HERE


def test_models_of_recboles_package_and_of_files_stand_beside_treadles_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = write_package(tmp_path)
    (tmp_path / "own.py").write_text("from recbole.model.general_recommender import Tiny\nclass Own(Tiny): ...\n")
    monkeypatch.setenv(VARIABLE, str(package))
    made = protocol(tmp_path, ["BPR", "recbole:Tiny", f"{tmp_path / 'own.py'}:Own"], **{"recbole-Tiny.tiny_size": 5})
    assert made.models == ["BPR", "recbole-Tiny", "Own"]
    assert [made.config(name)["tiny_size"] for name in made.models] == [None, 5, 3]


@pytest.mark.parametrize(
    ("models", "given", "message"),
    [
        (["BPR", "BPR"], {}, "must name at least one model, and each once"),
        ([], {}, "must name at least one model"),
        (["LightGCM"], {}, "there is no model 'LightGCM'; did you mean 'LightGCN'"),
        (["BPR"], {"EASE.reg_weight": 1.0}, "EASE.reg_weight=1.0: 'EASE' is not among the models"),
        (["BPR"], {"BPR.topk": [3]}, "BPR.topk: what is measured is the same for all models; give it without name"),
        (["BPR"], {"BPR.tail_ratio": 0.5}, "BPR.tail_ratio: what is measured is the same for all models"),
        (["BPR"], {"BPR.threshold": {"rating": 3}}, "BPR.threshold: which rows are judged is the same for all models"),
        (["BPR"], {"BPR.split_seed": 3}, "BPR.split_seed: which rows are judged is the same for all models"),
        (["BPR"], {"BPR.seed": 3}, "BPR.seed: the seed is the same for all models; give it without name"),
    ],
    ids=["twice", "none", "unknown", "absent", "shared", "tail", "labels", "split", "seed"],
)
def test_a_protocol_that_cannot_be_meant_is_refused(
    models: list[str], given: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        protocol(tmp_path, models, **given)
