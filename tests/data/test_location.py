"""The folder of a data set is found by its name, and what is missing is said."""

from pathlib import Path

import pytest

from treadle.data import data_folder
from treadle.errors import DataError


def test_a_data_set_is_a_folder_in_the_one_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "letters").mkdir()
    monkeypatch.setenv("TREADLE_DATA", str(tmp_path))
    assert data_folder("letters") == tmp_path / "letters"


def test_the_variable_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "letters").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TREADLE_DATA", "~/data")
    assert data_folder("letters") == tmp_path / "data" / "letters"


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("TREADLE_DATA", value)
    with pytest.raises(DataError) as caught:
        data_folder("letters")
    assert str(caught.value) == (
        "the data set 'letters' is looked for in the folder that the environment variable TREADLE_DATA names, which is "
        "not set; set it to the folder that holds letters/"
    )


def test_a_variable_that_names_no_folder_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(
        DataError, match=r"^TREADLE_DATA=.*nowhere is no folder; set it to the one that holds letters/$"
    ):
        data_folder("letters")


def test_a_data_set_that_is_not_there_is_named_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("letters", "digits"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TREADLE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"has no folder 'leters'; did you mean 'letters'\?$"):
        data_folder("leters")
    with pytest.raises(DataError, match=r"has no folder 'x'; it has \['digits', 'letters'\]$"):
        data_folder("x")
