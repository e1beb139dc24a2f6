"""Which run of a service this is."""

import logging
from pathlib import Path

import pytest

from treadle.errors import ConfigError
from treadle.events.storage import Life
from treadle.writers.remembered_run import RememberedRun


def test_a_run_that_goes_on_has_its_id_and_sends_each_curve_from_its_end(tmp_path: Path) -> None:
    first = RememberedRun(tmp_path / "folder" / "run.json")
    assert first.begin(Life(-1, 0)) is None
    first.remember("abc", {10: {"loss": 1.0}, 20: {"loss": 1.0}, 30: {"score": 1.0}})
    again = RememberedRun(tmp_path / "folder" / "run.json")
    assert again.begin(Life(15, 0)) == "abc"
    rows = {30: {"loss": 3.0, "score": 3.0}, 20: {"loss": 2.0, "score": 2.0, "new": 2.0}, 19: {"loss": 0.0}}
    assert again.unsent(rows) == {20: {"new": 2.0}, 30: {"loss": 3.0}}


def test_a_new_run_has_no_id_and_sends_everything(tmp_path: Path) -> None:
    first = RememberedRun(tmp_path / "run.json")
    first.remember("abc", {10: {"loss": 1.0}})
    assert first.begin(Life(-1, 0)) is None
    assert first.unsent({5: {"loss": 1.0}}) == {5: {"loss": 1.0}}


def test_a_run_that_goes_on_without_the_file_is_a_new_one(tmp_path: Path) -> None:
    assert RememberedRun(tmp_path / "run.json").begin(Life(15, 0)) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"id": "a"}', '{"id": "a", "sent": 3}', '{"id": "a", "sent": {"b": "c"}}']
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        RememberedRun(tmp_path / "run.json").begin(Life(15, 0))
    assert str(caught.value) == (
        f"{tmp_path / 'run.json'} does not say which run this is; remove it to begin a new one"
    )


def test_a_run_whose_memory_was_lost_says_that_it_begins_another_at_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert RememberedRun(tmp_path / "run.json").begin(Life(-1, 0)) is None
        assert caplog.text == ""
        assert RememberedRun(tmp_path / "run.json").begin(Life(4, 9)) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'run.json'} is not there: what the run reports from now on goes to a new run of the service"
    ]
