"""Pictures of architectures and of the weights of candidates: SVG that needs nothing else."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from torch import nn

from tests.nas.small import make, small
from treadle import nas
from treadle.errors import ConfigError
from treadle.nas import zoo as spaces

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: str) -> ElementTree.Element:
    """Return the tree of a picture, having checked that it needs nothing else."""
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in {"svg", "title", "rect", "text", "path", "polyline", "circle"}
        assert not [name for name in element.attrib if "href" in name or name.startswith("on")]
    return root


def of_kind(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if element.get("class") == kind]


def words(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


CELL = {
    "cell/op_2_0": "conv", "cell/input_2_0": [0], "cell/op_2_1": "pool", "cell/input_2_1": [1],
    "cell/op_3_0": "conv", "cell/input_3_0": [2], "cell/op_3_1": "none", "cell/input_3_1": [0],
}  # fmt: skip


def test_a_cell_is_drawn_with_its_states_its_operations_and_a_wire_to_and_from_each() -> None:
    root = parsed(nas.draw(CELL))
    assert len(of_kind(root, "operation")) == 4
    assert len(of_kind(root, "state")) == 5
    # Two for each operation, and one from each node to the output.
    assert len(of_kind(root, "wire")) == 2 * 4 + 2
    assert {"input 0", "input 1", "node 2", "node 3", "output", "conv", "pool", "none"} <= set(words(root))
    assert [box.get("stroke-dasharray") for box in of_kind(root, "operation")] == [None, None, None, "4 3"]
    titles = [element.text for element in root.iter(f"{SVG}title")]
    assert "cell/op_3_0: conv, from state 2 to state 3" in titles


def test_everything_lies_inside_the_picture_and_states_lie_right_of_what_they_read() -> None:
    root = parsed(nas.draw(CELL))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter(f"{SVG}rect"):
        left, top = float(box.get("x", 0)), float(box.get("y", 0))
        assert left + float(box.attrib["width"]) <= width
        assert top + float(box.attrib["height"]) <= height
    first, second, third, fourth, output = (float(box.attrib["x"]) for box in of_kind(root, "state"))
    assert first == second < third < fourth < output


def test_boxes_of_a_cell_never_overlap() -> None:
    space = spaces.DartsSpace(4, 3, in_channels=1)
    for seed in range(5):
        root = parsed(nas.draw(nas.sample(space, seed), space))
        boxes = [*of_kind(root, "operation"), *of_kind(root, "state")]
        assert len(of_kind(root, "operation")) == 16
        places = [[float(box.attrib[name]) for name in ("x", "y", "width", "height")] for box in boxes]
        for number, (x, y, width, height) in enumerate(places):
            for other_x, other_y, other_width, other_height in places[:number]:
                apart = x + width <= other_x or other_x + other_width <= x
                assert apart or y + height <= other_y or other_y + other_height <= y


def test_where_the_output_takes_loose_ends_only_those_are_wired_to_it() -> None:
    cell = nas.Cell({"conv": nn.Conv2d(2, 2, 1), "none": nn.Identity()}, 2, merge_op="loose_end", label="cell")
    architecture = {"cell/op_1_0": "conv", "cell/input_1_0": [0], "cell/op_2_0": "conv", "cell/input_2_0": [1]}
    assert len(of_kind(parsed(nas.draw(architecture, nn.Sequential(cell))), "wire")) == 2 * 2 + 1
    assert len(of_kind(parsed(nas.draw(architecture)), "wire")) == 2 * 2 + 2


def test_a_cell_of_nas_bench_201_has_an_operation_between_every_two_states() -> None:
    root = parsed(nas.draw(nas.sample(spaces.NasBench201Space(4), 1)))
    assert len(of_kind(root, "operation")) == 6
    assert [word for word in words(root) if word in ("input", "node 1", "node 2", "output")] == [
        "input", "node 1", "node 2", "output",
    ]  # fmt: skip


def test_decisions_are_lines_and_with_the_model_show_what_was_left() -> None:
    architecture = {"layer": "deep", "inner": "tanh", "skip": [1]}
    alone = parsed(nas.draw(architecture))
    assert [len(of_kind(alone, kind)) for kind in ("label", "taken", "left")] == [3, 3, 0]
    beside = parsed(nas.draw(architecture, small()))
    assert [len(of_kind(beside, kind)) for kind in ("label", "taken", "left")] == [3, 3, 4]


def test_an_empty_pick_is_drawn_as_nothing() -> None:
    assert "nothing" in words(parsed(nas.draw({"skip": []})))


def test_names_are_escaped_and_long_ones_shortened_with_the_whole_one_to_point_at() -> None:
    nasty = '<script>alert("1")</script> & a name that goes on and on without coming to an end at all'
    root = parsed(nas.draw({nasty: "<b>"}, title="a < b"))
    label = of_kind(root, "label")[0]
    assert label.text is not None
    assert label.text.endswith("…")
    title = label.find(f"{SVG}title")
    assert title is not None
    assert title.text == nasty
    assert "<b>" in words(root)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "nothing to draw: the architecture is empty"),
        (({"layer": "wide", "skip": [0]}, small()), "'layer' is 'wide', not one of"),
    ],
    ids=["empty", "of another space"],
)
def test_what_is_no_architecture_is_not_drawn(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nas.draw(*arguments)


# How weights went ---------------------------------------------------------------------------------------------


def test_the_folder_of_a_run_says_what_is_searched_what_it_weighed_and_what_was_found(tmp_path: Path) -> None:
    trainer = make(nas.DartsTrainer, run_dir=tmp_path, num_epochs=3)
    trainer.fit()
    assert json.loads((tmp_path / "search.json").read_text()) == {
        "trainer": "DartsTrainer",
        "rows": {"layer": ["deep", "flat", "none"], "inner": ["relu", "tanh"], "skip": [0, 1]},
        "architecture": trainer.export(),
    }
    history = nas.weights_over_time(tmp_path)
    assert history == trainer.weights_over_time()
    assert history.steps == [6, 12, 18]
    for row, weights in trainer.probabilities().items():
        assert {name: values[-1] for name, values in history.rows[row].items()} == {
            str(name): pytest.approx(value, abs=1e-6) for name, value in weights.items()
        }
        for values in zip(*history.rows[row].values(), strict=True):
            assert sum(values) == pytest.approx(1.0, abs=1e-5)


def test_how_weights_went_is_drawn_with_a_panel_for_each_row_and_a_line_for_each_candidate(tmp_path: Path) -> None:
    make(nas.DartsTrainer, run_dir=tmp_path, num_epochs=3).fit()
    root = parsed(nas.draw_weights(tmp_path))
    assert [element.text for element in of_kind(root, "row")] == ["layer", "inner", "skip"]
    assert len(of_kind(root, "weight")) == 3 + 2 + 2
    assert all(len(line.attrib["points"].split()) == 3 for line in of_kind(root, "weight"))
    assert "Weights of candidates, DartsTrainer" in words(root)
    assert len(of_kind(parsed(nas.draw_weights(tmp_path, rows=["skip"])), "weight")) == 2


def test_lines_are_where_the_weights_are_and_the_heaviest_candidate_comes_first() -> None:
    history = nas.WeightHistory("DartsTrainer", [10, 20], {"op": {"one": [0.75, 0.0], "other": [0.25, 1.0]}})
    root = parsed(nas.draw_weights(history))
    grid = sorted({float(line.attrib["points"].split()[0].split(",")[1]) for line in root.iter(f"{SVG}polyline")
                   if line.get("class") is None})  # fmt: skip
    top, bottom = grid[0], grid[-1]
    heights = [
        [float(point.split(",")[1]) for point in line.attrib["points"].split()] for line in of_kind(root, "weight")
    ]
    assert heights == [[bottom + 0.75 * (top - bottom), bottom], [bottom + 0.25 * (top - bottom), top]]
    assert [element.text for element in of_kind(root, "candidate")] == ["other", "one"]


def test_after_a_single_epoch_there_are_dots_and_no_lines() -> None:
    root = parsed(nas.draw_weights(nas.WeightHistory("DartsTrainer", [6], {"op": {"one": [0.5], "other": [0.5]}})))
    assert len(of_kind(root, "end")) == 2
    assert of_kind(root, "weight") == []


@pytest.mark.parametrize("kind", [nas.GumbelDartsTrainer, nas.ProxylessTrainer, nas.EnasTrainer])
def test_every_trainer_that_weighs_candidates_records_what_they_weigh(kind: Any) -> None:
    trainer = make(kind)
    trainer.fit()
    history = trainer.weights_over_time()
    assert len(history.steps) == 2
    assert {row: list(own) for row, own in history.rows.items()} == {
        "layer": ["deep", "flat", "none"], "inner": ["relu", "tanh"], "skip": ["0", "1"],
    }  # fmt: skip
    for weights in trainer.probabilities().values():
        assert sum(weights.values()) == pytest.approx(1.0)


def test_a_controller_says_how_likely_each_tensor_is_taken_where_any_number_may_be() -> None:
    class Open(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.skip = nas.InputChoice(2, None, label="skip")
            self.head = nn.Linear(4, 3)

        def forward(self, inputs: Any) -> Any:
            return self.head(self.skip(inputs, -inputs))

    trainer = make(nas.EnasTrainer, Open())
    assert {row: list(own) for row, own in trainer.probabilities().items()} == {
        "skip/0": [False, True], "skip/1": [False, True],
    }  # fmt: skip


def test_what_cannot_be_followed_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not the folder of a one-shot search: it has no search\.json"):
        nas.draw_weights(tmp_path)
    with pytest.raises(ConfigError, match="DartsTrainer has not come to the end of an epoch"):
        make(nas.DartsTrainer).weights_over_time()
    with pytest.raises(ConfigError, match="SposTrainer learns no weights of candidates"):
        make(nas.SposTrainer).weights_over_time()
    history = nas.WeightHistory("DartsTrainer", [6], {"layer": {"one": [1.0]}})
    with pytest.raises(ConfigError, match="there is no row 'layre'; did you mean 'layer'"):
        nas.draw_weights(history, rows=["layre"])
    with pytest.raises(ConfigError, match="columns=0 must be at least 1"):
        nas.draw_weights(history, columns=0)


def test_a_search_that_has_not_ended_leaves_no_architecture_in_its_folder(tmp_path: Path) -> None:
    trainer = make(nas.SposTrainer, run_dir=tmp_path)
    trainer.fit(max_steps=2)
    assert json.loads((tmp_path / "search.json").read_text())["architecture"] is None
