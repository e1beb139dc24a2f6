"""The numbers on a page are those of the runs."""

from pathlib import Path
from typing import Any

import pytest

from tests.tools.report.runs import make_run, rows_of
from treadle.errors import CheckpointError
from treadle.runs.panels import write_table
from treadle.runs.reader import Run, Start, read_panels, read_run
from treadle.tools.report.charts import Clock, Curves, Point, downsample, group_charts
from treadle.tools.report.payload import build_payload, choose_colours


def read_curves(run: Run) -> dict[str, dict[str, list[Any]]]:
    """Return the curves of a run by the name of their metric."""
    curves = Curves(run.starts)
    curves.add(list(run.rows))
    return curves.plain()


def test_a_curve_has_the_steps_the_seconds_and_the_values_of_its_rows(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "first", rows_of([2.0, 1.0], lr=0.1)))
    assert read_curves(run) == {
        "lr": {"step": [1, 2], "seconds": [1.0, 2.0], "value": [0.1, 0.1]},
        "train_loss": {"step": [1, 2], "seconds": [1.0, 2.0], "value": [2.0, 1.0]},
    }


def test_what_is_not_finite_is_a_gap_and_what_is_no_number_is_no_curve(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "first", rows_of([2.0, "nan", "inf", 1.0], note="words", many=[1, 2])))
    assert read_curves(run) == {
        "train_loss": {"step": [1, 2, 3, 4], "seconds": [1.0, 2.0, 3.0, 4.0], "value": [2.0, None, None, 1.0]}
    }


def test_the_time_between_two_starts_is_not_training() -> None:
    rows = [{"step": 1, "time": 10.0}, {"step": 2, "time": 20.0}, {"step": 3, "time": 1010.0}]
    starts = [Start(0, 0.0), Start(2, 1000.0)]
    assert Clock(starts).seconds(rows) == [10.0, 20.0, 30.0]


def test_seconds_of_a_step_are_a_curve_beside_the_clock_and_left_out_where_an_old_file_mixes_them(
    tmp_path: Path,
) -> None:
    new = read_run(make_run(tmp_path / "new", rows_of([2.0, 1.0], time=0.25)))
    assert read_curves(new)["time"] == {"step": [1, 2], "seconds": [1.0, 2.0], "value": [0.25, 0.25]}
    assert [chart.title for chart in group_charts(["time"])] == ["Seconds per step"]
    begin = 1767225600.0
    old = [{"step": 0, "time": begin + 3.0, "total_loss": 2.0}, {"step": 2, "time": 0.25, "total_loss": 1.0}]
    found = read_curves(read_run(make_run(tmp_path / "old", old)))
    assert found == {"total_loss": {"step": [0, 2], "seconds": [3.0, 3.5], "value": [2.0, 1.0]}}


def test_steps_that_are_written_together_are_apart_by_the_seconds_that_each_took() -> None:
    rows: list[dict[str, Any]] = [{"step": step, "wall_time": 100.0, "time": 0.5} for step in range(4)]
    del rows[0]["time"], rows[1]["time"]
    rows += [{"step": 4, "wall_time": 107.0, "time": 1.0}, {"step": 5, "wall_time": 107.0, "time": 2.0}]
    assert Clock([Start(0, 90.0)]).seconds(rows) == [9.0, 9.0, 9.5, 10.0, 15.0, 17.0]
    own = [{"step": step, "wall_time": 100.0 + step, "time": time} for step, time in enumerate(["late", 1e12, -1.0])]
    assert Clock([Start(0, 90.0)]).seconds(own) == [10.0, 11.0, 12.0]


def test_without_a_manifest_time_counts_from_the_first_row() -> None:
    assert Clock().seconds([{"step": 1, "time": 10.0}, {"step": 2, "time": 20.0}]) == [0.0, 10.0]


@pytest.mark.parametrize("most", [2, 10, 101, 1000])
def test_a_thinned_curve_keeps_its_ends_and_its_extremes(most: int) -> None:
    points = [Point(step, float(step), float((step * 7919) % 1009)) for step in range(1500)]
    kept = downsample(points, most)
    values = [point.value for point in points]
    assert len(kept) <= max(most, 4)
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert {point.value for point in kept} >= {min(values), max(values)}  # type: ignore[type-var]


def test_a_short_curve_is_kept_as_it_is_and_gaps_survive_thinning() -> None:
    points = [Point(step, 0.0, None) for step in range(100)]
    assert downsample(points[:10], 10) == points[:10]
    assert all(point.value is None for point in downsample(points, 10))


def test_metrics_are_put_into_the_pictures_they_belong_to() -> None:
    metrics = ["step_time/data", "step_time/forward", "eval_loss_epoch", "train_loss", "valid_ndcg@10", "train_f1"]
    metrics += ["eval_f1", "lr/0", "lr/1", "gradient_norm", "samples_per_second", "eta_seconds", "peak_memory_mib"]
    found = {chart.title: (chart.section, chart.metrics, chart.stacked) for chart in group_charts(metrics)}
    assert found == {
        "Loss": ("Curves", ("train_loss", "eval_loss_epoch"), False),
        "f1": ("Curves", ("train_f1", "eval_f1"), False),
        "ndcg@10": ("Curves", ("valid_ndcg@10",), False),
        "Learning rate": ("Curves", ("lr/0", "lr/1"), False),
        "Gradient norm": ("Curves", ("gradient_norm",), False),
        "Where the time of a step goes, milliseconds": ("Machine", ("step_time/data", "step_time/forward"), True),
        "Samples per second": ("Machine", ("samples_per_second",), False),
        "Peak memory, MiB": ("Machine", ("peak_memory_mib",), False),
    }


def cell(lowest: tuple[float, int], highest: tuple[float, int], last: tuple[float, int]) -> dict[str, float]:
    """Return what the table of evaluations knows of a metric of a run: values with their steps."""
    named = {"lowest": lowest, "highest": highest, "last": last}
    return {key: told for name, (value, step) in named.items() for key, told in ((name, value), (f"{name}_step", step))}


def test_the_table_of_evaluations_has_the_last_lowest_and_highest_value_of_their_metrics_only() -> None:
    rows = [
        {"step": 1, "train_loss": 3.0, "lr": 0.1},
        {"step": 2, "eval_loss_epoch": 2.0, "accuracy": 0.5, "train_loss": 2.0, "lr": 0.1, "time": 3.0},
        {"step": 4, "eval_loss_epoch": 1.0, "accuracy": 0.75, "steps_per_second": 9.0},
        {"step": 6, "eval_loss_epoch": 1.5, "accuracy": "nan"},
    ]
    payload = build_payload([Run("a", Path("a"), rows=rows), Run("b", Path("b"))])
    assert payload["evaluations"] == {
        "eval_loss_epoch": [cell((1.0, 4), (2.0, 2), (1.5, 6)), None],
        "accuracy": [cell((0.5, 2), (0.75, 4), (0.75, 4)), None],
    }
    assert payload["directions"] == {"eval_loss_epoch": "min", "accuracy": "max"}


def test_evaluations_of_the_engine_are_those_that_stand_without_training_in_the_end() -> None:
    rows = [
        {"step": 0, "total_loss": 2.0, "ring_loss": 2.0, "lr": 0.1, "time": 0.01},
        {"step": 1, "total_loss": 1.0, "ring_loss": 1.0, "lr": 0.1, "Acc@1": 80.0, "samples_per_second": 9.0},
        {"step": 2, "Acc@1": 70.0, "epoch": 0, "time": 1700000000.0},
    ]
    payload = build_payload([Run("a", Path("a"), rows=rows)])
    assert payload["evaluations"] == {"Acc@1": [cell((70.0, 2), (80.0, 1), (70.0, 2))]}


def test_only_keys_that_differ_between_configs_are_listed_and_a_missing_one_differs() -> None:
    first = Run("a", Path("a"), config={"optim": {"lr": 0.1, "name": "sgd"}, "seed": 0})
    second = Run("b", Path("b"), config={"optim": {"lr": 0.2, "name": "sgd"}})
    assert build_payload([first, second])["differences"] == [
        {"key": "optim.lr", "values": ["0.1", "0.2"]},
        {"key": "seed", "values": ["0", None]},
    ]


def test_panels_about_all_runs_stand_beside_those_of_each(tmp_path: Path) -> None:
    write_table(tmp_path / "all", "Who is best", ["", "run"], [[1, "first"]])
    run = read_run(make_run(tmp_path / "first", rows_of([2.0])))
    found = build_payload([run], list(read_panels(tmp_path / "all")))
    assert found["panels"] == [{"title": "Who is best", "svg": "", "columns": ("", "run"), "rows": [["1", "first"]]}]
    assert found["runs"][0]["panels"] == []


def test_a_panel_that_the_disk_does_not_take_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "panels").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot write .*Best\.json"):
        write_table(tmp_path, "Best", ["a"], [["b"]])


def test_the_best_value_of_a_run_is_that_of_the_metric_it_is_judged_by_with_its_step() -> None:
    rows = [{"step": step, "eval_loss_epoch": 4.0 - step, "accuracy": value} for step, value in ((1, 0.5), (2, 0.25))]
    watched = {"watched": {"metric": "accuracy", "greater_is_better": True}}
    told = build_payload([Run("a", Path("a"), rows=rows, manifest=watched), Run("b", Path("b"), rows=rows)])
    assert [run["best"] for run in told["runs"]] == [
        {"metric": "accuracy", "value": 0.5, "step": 1, "is": "best"},
        {"metric": "eval_loss_epoch", "value": 2.0, "step": 2, "is": "best"},
    ]
    # What a door judges by may be one of its metrics under another name.
    both = [
        {"step": step, "valid_hit@10": 0.9, "valid_mrr@10": value, "valid_score": value}
        for step, value in ((1, 0.2), (2, 0.1))
    ]
    scored = build_payload([Run("d", Path("d"), rows=both)])
    assert scored["runs"][0]["best"] == {"metric": "valid_mrr@10", "value": 0.2, "step": 1, "is": "best"}
    assert list(scored["evaluations"]) == ["valid_mrr@10", "valid_hit@10"]
    # Without an evaluation it is the last loss, and nobody calls it the best.
    alone = build_payload([Run("c", Path("c"), rows=rows_of([3.0, 2.0]))])["runs"][0]
    assert alone["best"] == {"metric": "train_loss", "value": 2.0, "step": 2, "is": "last"}


def test_a_card_knows_duration_parameters_and_device(tmp_path: Path) -> None:
    facts = {
        "parameters": {"trained": 12, "frozen": 3},
        "environment": {"device": "NVIDIA H200"},
        "processes": 2,
    }
    runs = [
        Run("gpu", tmp_path, rows=rows_of([2.0, 1.0, 0.5]), manifest=facts, config={"device": "cuda:0"}),
        # On a machine with a GPU, a run may still be on the CPU.
        Run("cpu", tmp_path, manifest={"environment": {"device": "NVIDIA H200"}}, config={"device": "cpu"}),
    ]
    gpu, cpu = build_payload(runs)["runs"]
    assert (gpu["seconds"], gpu["parameters"], gpu["device"]) == (2.0, facts["parameters"], "2 x NVIDIA H200")
    assert (cpu["seconds"], cpu["parameters"], cpu["device"]) == (0.0, None, "cpu")


def test_what_is_reported_once_is_a_number_and_no_curve() -> None:
    rows: list[dict[str, Any]] = [*rows_of([2.0, 1.0]), {"step": 3, "peak_memory_mib": 12.0}]
    told = build_payload([Run("a", Path("a"), rows=rows), Run("b", Path("b"), rows=rows_of([1.0]))])
    assert [chart["title"] for chart in told["charts"]] == ["Loss"]
    assert told["once"] == {"peak_memory_mib": [12.0, None]}


def test_one_quantity_under_several_names_is_drawn_once() -> None:
    rows = [
        {"step": step, "train_loss": 1.0 / step, "train_loss_epoch": 2.0 / step, "train_loss_sum": 20.0 / step}
        | {"valid_score": 0.1 * step, "valid_ndcg@10": 0.1 * step, "lr/0": 0.1 * step, "lr/1": 0.1 * step}
        | {"samples_per_second": 80.0 + step, "steps_per_second": 10.0, "time": 0.1, "constant": 1.0, "other": 1.0}
        for step in (1, 2, 3)
    ]
    told = build_payload([Run("a", Path("a"), rows=rows)])
    assert {chart["title"]: chart["metrics"] for chart in told["charts"]} == {
        "Loss": ("train_loss",),
        # By chance two metrics may stay at one value.
        "constant": ("constant",),
        "other": ("other",),
        "ndcg@10": ("valid_ndcg@10",),
        "Learning rate": ("lr/0",),
        "Samples per second": ("samples_per_second",),
    }
    assert told["repeated"]["train_loss"] == ["train_loss_epoch", "train_loss_sum"]
    assert list(told["evaluations"]) == ["valid_ndcg@10", "constant", "other"]


def test_an_epoch_loss_that_another_run_has_alone_is_drawn_for_both() -> None:
    both = {"step": 1, "train_loss": 1.0, "train_loss_epoch": 1.0}
    rows = [[both, {**both, "step": 2}], [{"step": step, "train_loss_epoch": 1.0 / step} for step in (1, 2)]]
    told = build_payload([Run(name, Path(name), rows=own) for name, own in zip("ab", rows, strict=True)])
    assert [chart["metrics"] for chart in told["charts"]] == [("train_loss", "train_loss_epoch")]


def test_parts_of_a_loss_are_not_drawn_over_the_whole() -> None:
    found = group_charts(["total_loss", "box_loss", "kl_loss", "eval_loss_epoch"])
    assert [(chart.title, chart.metrics) for chart in found] == [
        ("Loss", ("total_loss", "eval_loss_epoch")),
        ("Parts of the loss", ("box_loss", "kl_loss")),
    ]


def test_epochs_end_where_the_last_row_of_each_stands_and_the_one_under_way_is_as_long_as_the_last() -> None:
    def ends(*places: tuple[int, int], each: int | None = None) -> list[tuple[int, int]]:
        curves = Curves()
        curves.add([{"step": step, "epoch": epoch, "loss": 1.0} for step, epoch in places])
        return curves.epoch_ends(each)

    assert ends((4, 0), (10, 0), (14, 1), (20, 1)) == [(10, 1), (20, 2)]
    assert ends((10, 0), (20, 1), (23, 2)) == [(10, 1), (20, 2), (30, 3)]
    assert ends((10, 0), (12, 1), each=10) == [(10, 1), (20, 2)]
    # One epoch is no axis.
    assert ends((4, 0), (10, 0)) == []


def test_a_run_keeps_its_colour_whichever_runs_come_later() -> None:
    def begun(name: str, time: float) -> Run:
        return Run(name, Path(name), starts=(Start(0, time),))

    runs = [begun(f"run{number}", float(number)) for number in range(15)]
    all_of_them = choose_colours(runs)
    assert len(set(all_of_them.values())) == len(runs)
    for count in range(1, len(runs)):
        assert choose_colours(runs[:count]) == {run.name: all_of_them[run.name] for run in runs[:count]}
    assert choose_colours(runs[::-1]) == all_of_them
    # A page that is open keeps them when a run goes, too.
    known = dict(all_of_them)
    choose_colours([*runs[1:], begun("new", 99.0)], known)
    assert {name: known[name] for name in all_of_them} == all_of_them
    assert known["new"] not in all_of_them.values()


def test_the_folder_of_a_run_is_no_difference_between_configs() -> None:
    runs = [Run(name, Path(name), config={"run_dir": name, "lr": 0.1}) for name in "ab"]
    assert build_payload(runs)["differences"] == []
