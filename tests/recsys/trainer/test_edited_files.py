"""The file of a model that somebody edited, checksum and all, is refused in our words."""

from pathlib import Path
from typing import Any

import pytest

from tests.recsys.trainer.runs import make
from treadle.checkpoint import read_file, write_file
from treadle.errors import CheckpointError, TreadleError

JUNK: list[Any] = [None, 3, "x", [1], {"a": 1}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The file of a model, and what is in it."""
    folder = tmp_path_factory.mktemp("edited")
    run = make(folder, epochs=1)
    run.fit()
    path = Path(run.trainer.saved_model_file)
    return path, read_file(path)


def loaded(folder: Path, path: Path) -> None:
    run = make(folder, epochs=1)
    run.trainer.resume_checkpoint(path)
    run.trainer.evaluate(run.test, model_file=path)


NAMES = ["model", "state_dict", "other_parameter", "optimizer", "epoch", "cur_step", "train_loss_dict", "fingerprints"]


@pytest.mark.parametrize("name", NAMES)
def test_a_part_that_is_missing_or_something_else_is_named(
    trained: tuple[Path, dict[str, Any]], name: str, tmp_path: Path
) -> None:
    path, state = trained
    edited = tmp_path / path.name
    if name != "fingerprints":
        write_file(edited, {key: value for key, value in state.items() if key != name})
        with pytest.raises(CheckpointError, match=rf"was edited: it lacks its {name}; restore the file"):
            loaded(tmp_path, edited)
    for junk in JUNK:
        if not isinstance(junk, type(state[name])):
            write_file(edited, {**state, name: junk})
            with pytest.raises(CheckpointError, match=rf"was edited: its {name} is a {type(junk).__name__}, where"):
                loaded(tmp_path, edited)


@pytest.mark.parametrize("name", ["state_dict", "optimizer", "best_valid_score"])
def test_a_part_of_another_form_is_an_error_of_ours(
    trained: tuple[Path, dict[str, Any]], name: str, tmp_path: Path
) -> None:
    path, state = trained
    edited = tmp_path / path.name
    write_file(edited, {**state, name: {"optimizer": {"a": 1}}})
    with pytest.raises(TreadleError):
        loaded(tmp_path, edited)
