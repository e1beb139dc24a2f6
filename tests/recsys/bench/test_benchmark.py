"""Benchmarks: one table, gone on with after an interruption, with failures that cost nobody else."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.recsys.bench.contestants import Tired
from tests.recsys.bench.tiny import HERE, benchmark, protocol
from tests.recsys.compat.written_for_recbole import write_package
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, run_recbole
from treadle.recsys.bench import Benchmark, Protocol, Record
from treadle.recsys.compat.package import VARIABLE


def test_each_model_is_trained_as_it_would_be_alone(tmp_path: Path) -> None:
    made = benchmark(tmp_path, ["BPR", "Pop"])
    told: list[str] = []
    table = made.run(told.append)
    alone = {}
    for name in ("BPR", "Pop"):
        settings = yaml.safe_load((tmp_path / "bench" / "settings" / f"{name}.yaml").read_text())
        given = {key: value for key, value in settings.items() if key not in ("model", "dataset")}
        found = run_recbole(name, "tiny", config_dict={**given, "checkpoint_dir": str(tmp_path / "alone")})
        alone[name] = found["test_result"].exact
    records = {line.model: line.records[0] for line in table.lines}
    assert {name: one.test for name, one in records.items()} == alone
    assert told[::2] == ["BPR, seed 2020: begins", "Pop, seed 2020: begins"]
    assert told[1] == f"BPR, seed 2020: ndcg@5 {alone['BPR']['ndcg@5']:.4f}, 2 epochs"


def test_a_record_says_what_a_training_cost(tmp_path: Path) -> None:
    benchmark(tmp_path, ["BPR"]).run()
    found = Record.read(tmp_path / "bench" / "runs" / "BPR-2020")
    assert found is not None
    assert (found.parameters, found.epochs, found.device) == ((25 + 31) * 8, 2, "cpu")
    assert found.seconds_per_epoch is not None
    assert found.seconds_per_epoch > 0
    assert found.memory_mib is None or found.memory_mib > 1
    assert found.settings["embedding_size"] == 8
    assert set(found.valid) == set(found.test) == {"ndcg@5", "recall@5"}


def test_models_of_several_kinds_are_tested_on_the_same_rows(tmp_path: Path) -> None:
    table = benchmark(tmp_path, ["BPR", "CKE", "GRU4Rec"], epochs=1, **{"GRU4Rec.hidden_size": 8}).run()
    assert not table.failed
    assert len({one.test_print for line in table.lines for one in line.records}) == 1
    assert any("All models are tested on the same 24 rows" in note for note in table.notes())


def test_what_is_done_is_not_done_again_and_what_was_cut_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ["BPR", f"{HERE}.Tired"]
    whole = benchmark(tmp_path / "whole", models, save_every="1 step").run()
    monkeypatch.setattr(Tired, "after", 5)
    with pytest.raises(KeyboardInterrupt):
        benchmark(tmp_path / "cut", models, save_every="1 step").run()
    assert Record.read(tmp_path / "cut" / "bench" / "runs" / "Tired-2020") is None
    told: list[str] = []
    table = benchmark(tmp_path / "cut", models, save_every="1 step").run(told.append)
    assert told[:2] == ["BPR, seed 2020: done before", "Tired, seed 2020: resumes"]
    log = (tmp_path / "cut" / "bench" / "runs" / "Tired-2020" / "log.txt").read_text()
    assert "resuming from step" in log
    assert _results(table) == _results(whole)


def _results(table: Any) -> dict[str, Any]:
    return {line.model: [(one.test, one.valid, one.epochs) for one in line.records] for line in table.lines}


def test_a_model_that_fails_costs_no_other_and_is_tried_again(tmp_path: Path) -> None:
    models = [f"{HERE}.Broken", "Pop"]
    told: list[str] = []
    table = benchmark(tmp_path, models).run(told.append)
    assert [line.model for line in table.lines] == ["Pop"]
    assert [one.model for one in table.failed] == ["Broken"]
    assert told[1] == "Broken, seed 2020: failed: ValueError: this model has a mistake in it"
    text = (tmp_path / "bench" / "leaderboard.md").read_text()
    assert "- Broken, seed 2020: ValueError: this model has a mistake in it" in text
    again: list[str] = []
    benchmark(tmp_path, models).run(again.append)
    assert again[0] == "Broken, seed 2020: resumes"
    assert again[2] == "Pop, seed 2020: done before"


def test_settings_that_a_model_cannot_have_are_its_own_failure(tmp_path: Path) -> None:
    given = {"SASRec.loss_type": "CE", "SASRec.train_neg_sample_args": {"distribution": "uniform"}}
    table = benchmark(tmp_path, ["Pop", "SASRec"], **given).run()
    assert [line.model for line in table.lines] == ["Pop"]
    assert table.failed[0].error.startswith("ConfigError: train_neg_sample_args=")


def test_models_and_seeds_can_be_added(tmp_path: Path) -> None:
    benchmark(tmp_path, ["Pop"]).run()
    told: list[str] = []
    table = benchmark(tmp_path, ["Pop", "BPR"], seeds=(2020, 7)).run(told.append)
    assert told[0] == "Pop, seed 2020: done before"
    assert [(line.model, len(line.records)) for line in sorted(table.lines, key=lambda one: one.model)] == [
        ("BPR", 2),
        ("Pop", 2),
    ]
    bpr = next(line for line in table.lines if line.model == "BPR")
    assert bpr.records[0].test != bpr.records[1].test
    assert " ± " in bpr.shown("ndcg@5")


def test_another_protocol_needs_another_folder(tmp_path: Path) -> None:
    benchmark(tmp_path, ["Pop"]).run()
    with pytest.raises(ConfigError, match=r"holds a benchmark with topk=\[5\], and now it is \[3\]: the results could"):
        benchmark(tmp_path, ["Pop"], topk=[3], valid_metric="NDCG@3")


def test_a_benchmark_of_before_a_shared_setting_existed_goes_on(tmp_path: Path) -> None:
    benchmark(tmp_path, ["Pop"]).run()
    path = tmp_path / "bench" / "protocol.json"
    known = json.loads(path.read_text())
    del known["tail_ratio"]
    path.write_text(json.dumps(known))
    told: list[str] = []
    benchmark(tmp_path, ["Pop"]).run(told.append)
    assert told == ["Pop, seed 2020: done before"]


def test_the_fingerprint_of_labelled_rows_knows_their_labels(tmp_path: Path) -> None:
    given = {"metrics": ["AUC"], "valid_metric": "AUC", "epochs": 1}
    prints = []
    for place, least in enumerate((3, 4)):
        table = benchmark(tmp_path / str(place), ["FM"], threshold={"rating": least}, **given).run()
        prints.append(table.lines[0].records[0].test_print)
    assert prints[0] != prints[1]


def test_other_settings_of_a_model_need_another_folder(tmp_path: Path) -> None:
    benchmark(tmp_path, ["BPR"]).run()
    with pytest.raises(ConfigError, match=r"BPR-2020 was begun with learning_rate=0.001, and now BPR has 0.1"):
        benchmark(tmp_path, ["BPR"], **{"BPR.learning_rate": 0.1}).run()


def test_other_settings_are_refused_for_other_seeds_too(tmp_path: Path) -> None:
    benchmark(tmp_path, ["BPR"]).run()
    with pytest.raises(ConfigError, match=r"BPR-2020 was begun with learning_rate=0.001, and now BPR has 0.1"):
        benchmark(tmp_path, ["BPR"], seeds=[7], **{"BPR.learning_rate": 0.1}).run()


def test_a_model_of_recboles_package_is_in_the_table_beside_its_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(write_package(tmp_path)))
    (tmp_path / "own.py").write_text("from recbole.model.general_recommender import Tiny\nclass BPR(Tiny): ...\n")
    table = benchmark(tmp_path, [f"{tmp_path / 'own.py'}:BPR", "recbole:Tiny"], epochs=1).run()
    assert not table.failed
    assert {line.model for line in table.lines} == {"BPR", "recbole-Tiny"}
    assert (tmp_path / "bench" / "settings" / "recbole-Tiny.yaml").is_file()


@pytest.mark.slow
def test_a_model_whose_process_is_killed_costs_no_other(tmp_path: Path) -> None:
    made = Benchmark(protocol(tmp_path, [f"{HERE}.Dies", "Pop"]), tmp_path / "bench")
    table = made.run()
    assert [line.model for line in table.lines] == ["Pop"]
    assert table.failed[0].error.startswith("its process ended with signal SIGKILL")
    assert table.lines[0].records[0].memory_mib is not None


def test_a_seed_of_the_split_leaves_the_parts_as_they_are(tmp_path: Path) -> None:
    from treadle.recsys import create_dataset

    given = protocol(tmp_path, ["BPR"]).settings("BPR")
    parts = []
    for seed, split in ((1, 5), (2, 5), (5, None), (2, None)):
        config = Config("BPR", "tiny", config_dict={**given, "seed": seed, "split_seed": split})
        parts.append([rows.tolist() for rows in create_dataset(config).split_rows()])
    assert parts[0] == parts[1] == parts[2] != parts[3]


def test_the_leaderboard_is_there_for_programs_too(tmp_path: Path) -> None:
    benchmark(tmp_path, ["Pop"]).run()
    found = json.loads((tmp_path / "bench" / "leaderboard.json").read_text())
    assert (found["dataset"], found["metric"], found["order"]) == ("tiny", "ndcg@5", ["Pop"])
    assert found["protocol"]["topk"] == [5]
    assert found["trainings"][0]["settings"]["model"] == "Pop"


def test_a_result_does_not_depend_on_who_else_takes_part(tmp_path: Path) -> None:
    order = {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"}
    found = []
    for place, models in enumerate((["EASE", "Pop"], ["GRU4Rec", "Pop", "EASE"])):
        given = {"eval_args": order, "epochs": 1, "hidden_size": 8, "num_layers": 1}
        table = benchmark(tmp_path / str(place), models, **given).run()
        assert not table.failed
        found.append({line.model: line.records[0].test for line in table.lines if line.model != "GRU4Rec"})
    assert found[0] == found[1]
    assert found[0]["EASE"]["ndcg@5"] > 0


def test_a_data_set_that_is_not_there_is_an_error_once_and_leaves_no_folder(tmp_path: Path) -> None:
    made = benchmark(tmp_path, ["BPR", "Pop"], data_path=str(tmp_path / "elsewhere"))
    told: list[str] = []
    with pytest.raises(
        DataError, match=r"the folder .*elsewhere.tiny of the data set 'tiny' is not there; put its files"
    ):
        made.run(told.append)
    assert told == []
    assert not (tmp_path / "bench").exists()


def test_the_demonstration_shop_is_a_data_set_without_files(tmp_path: Path) -> None:
    table = Benchmark(Protocol(["Pop"], "demo-shop"), tmp_path / "bench", isolated=False).run()
    assert not table.failed
