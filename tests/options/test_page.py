"""The page of options is what the signatures and the tables of the doors say."""

import inspect

from benchmarks.docs.options_page import CONFLICTS, DOORS, PAGE, arguments, page
from treadle import Trainer
from treadle.spec import Names, spec_options

OPTIONS = {*spec_options("trainer"), *spec_options("train")}


def test_the_page_is_what_would_be_written() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m benchmarks.docs.options_page"


def test_every_argument_is_on_the_page_with_its_meaning() -> None:
    names = [name for function in (Trainer.__init__, Trainer.train) for name in inspect.signature(function).parameters]
    assert [one.name for one in arguments()] == [name for name in names if name != "self"]
    assert all(one.meaning for one in arguments())
    text = page()
    assert all(one.first in text for one in CONFLICTS)


def test_the_arguments_that_are_no_options_have_a_word_behind_every_door() -> None:
    others = {one.name for one in arguments()} - OPTIONS
    tables: dict[str, Names] = {door: parts for door, (_, parts) in DOORS.items()}
    assert {door: set(parts) for door, parts in tables.items()} == dict.fromkeys(DOORS, others)
