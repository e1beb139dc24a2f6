"""Windows over the past of a metric."""

import math

import pytest

from treadle.errors import ConfigError
from treadle.events import HistoryBuffer


def filled(*values: float, every: int = 1) -> HistoryBuffer:
    buffer = HistoryBuffer()
    for place, value in enumerate(values):
        buffer.update(value, place * every)
    return buffer


def test_medians_and_means_are_over_the_last_iterations() -> None:
    buffer = filled(8.0, 1.0, 2.0, 6.0)
    assert (buffer.latest(), buffer.median(3), buffer.median(4), buffer.median(100)) == (6.0, 2.0, 4.0, 4.0)
    assert (buffer.avg(3), buffer.avg(2), buffer.global_avg()) == (3.0, 4.0, 4.25)


def test_a_window_counts_iterations_without_a_value_too() -> None:
    buffer = filled(8.0, 1.0, 2.0, 6.0, every=10)
    assert (buffer.median(10), buffer.median(11), buffer.avg(21)) == (6.0, 4.0, 3.0)


def test_several_values_of_one_iteration_are_all_in_the_window() -> None:
    buffer = HistoryBuffer()
    for value in (1.0, 2.0, 6.0):
        buffer.update(value, 5)
    assert buffer.median(1) == 2.0


def test_a_window_does_not_reach_into_an_earlier_run_whose_history_was_kept() -> None:
    buffer = filled(50.0, 50.0, 50.0)
    buffer.update(1.0, 0)
    buffer.update(3.0, 1)
    assert buffer.median(20) == 2.0


def test_an_iteration_that_is_not_given_is_the_next() -> None:
    buffer = HistoryBuffer()
    buffer.update(1.0)
    buffer.update(2.0)
    buffer.update(3.0, 7)
    buffer.update(4.0)
    assert buffer.values() == [(1.0, 0), (2.0, 1), (3.0, 7), (4.0, 8)]


def test_the_mean_over_everything_includes_what_is_no_longer_kept() -> None:
    buffer = HistoryBuffer(max_length=2)
    for value in range(10):
        buffer.update(float(value))
    assert 2 <= len(buffer.values()) <= 4
    assert buffer.values()[-1] == (9.0, 9)
    assert buffer.global_avg() == 4.5


def test_a_nan_in_the_window_shows() -> None:
    buffer = filled(math.nan, 1.0, 3.0)
    assert math.isnan(buffer.median(3))
    assert math.isnan(buffer.avg(3))
    assert buffer.median(2) == 2.0


@pytest.mark.parametrize("method", ["latest", "global_avg"])
def test_an_empty_history_says_so(method: str) -> None:
    with pytest.raises(ConfigError, match=r"^this history holds no value yet; update it first$"):
        getattr(HistoryBuffer(), method)()


def test_a_history_must_keep_something() -> None:
    with pytest.raises(ConfigError, match=r"^max_length=0 keeps no value; use at least 1$"):
        HistoryBuffer(0)
