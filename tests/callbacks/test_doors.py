"""The page about callbacks says which of them do something behind which door, as it is."""

import re
from pathlib import Path

import pytest

from treadle import callbacks
from treadle.callback import TrainerCallback
from treadle.engine.hooks.hook_list import REFUSED as REFUSED_BY_ENGINE
from treadle.engine.hooks.hook_list import refuse_callback
from treadle.errors import ConfigError
from treadle.recsys.trainers.loop.callbacks import REFUSED as REFUSED_BY_RECOMMENDERS
from treadle.recsys.trainers.loop.callbacks import refuse_idle
from treadle.tools.report import ReportCallback

PAGE = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Behind every door")[1].split("\n## ")[0]
TABLE = {
    name: (one, other) for name, one, other in re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", SECTION, re.MULTILINE)
}
THERE = [getattr(callbacks, name) for name in callbacks.__all__]
PARENTS = (TrainerCallback, callbacks.WatchesMetric)
KINDS = [one for one in THERE if isinstance(one, type) and issubclass(one, TrainerCallback) and one not in PARENTS]


def test_the_table_has_every_callback() -> None:
    assert list(TABLE) == [kind.__name__ for kind in [*KINDS, ReportCallback]]


@pytest.mark.parametrize("kind", [*KINDS, ReportCallback], ids=lambda kind: kind.__name__)
def test_the_table_says_what_a_door_does_with_a_callback(kind: type) -> None:
    """That one which is taken brings about something is shown by the tests of each door."""
    doors = ((refuse_callback, REFUSED_BY_ENGINE), (lambda one: refuse_idle([one]), REFUSED_BY_RECOMMENDERS))
    for said, (refuse, reasons) in zip(TABLE[kind.__name__], doors, strict=True):
        if said == "yes":
            refuse(kind)
            assert kind not in reasons
        else:
            assert said == f"no: {reasons[kind]}"
            with pytest.raises(ConfigError, match="does nothing in a"):
                refuse(kind)
