"""The line that the console shows."""

import logging

import pytest
import torch

from treadle.events import EventStorage, names
from treadle.progress import Progress
from treadle.writers import CommonMetricPrinter


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line has the memory of a GPU where there is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def put_times(storage: EventStorage, *seconds: float) -> None:
    for iteration, value in enumerate(seconds):
        storage.put_scalar(names.TIME, value, cur_iter=iteration)
        storage.put_scalar(names.DATA_TIME, value / 4, cur_iter=iteration)
    storage.iter = len(seconds) - 1


def test_b39_a_line_has_the_pace_the_losses_the_rate_and_the_memory(storage: EventStorage) -> None:
    lines: list[str] = []
    put_times(storage, 0.5, 0.5, 0.5, 2.5)
    storage.samples = 128
    storage.put_scalars(total_loss=1.25, grad_norm=3.0)
    storage.put_scalar("lr", 3e-4, smoothing_hint=False)
    storage.put_scalars({names.TOKENS_PER_SECOND: 8192.0, names.MFU: 0.4125, names.PEAK_MEMORY_MIB: 512.0})
    CommonMetricPrinter(32, 1003, show=lines.append).write()
    # The median step takes half a second, of which 999 are to come; the mean step takes one.
    assert lines == [
        "step 4/1,003  train 1.250  grad_norm 3.000  lr 3.00e-04  32 samples/s  8,192 tokens/s  mfu 41.2%  "
        "waits for data 25%  8m20s left"
    ]
    assert storage.latest()[names.ETA_SECONDS] == (499.5, 3)


def test_b35_losses_are_the_median_of_the_window(storage: EventStorage) -> None:
    lines: list[str] = []
    for iteration, loss in enumerate([9.0, 1.0, 2.0, 30.0]):
        storage.iter = iteration
        storage.put_scalar("loss", loss)
    CommonMetricPrinter(window_size=3, show=lines.append).write()
    assert lines == ["step 3  loss 2.000"]


def test_without_a_measured_time_the_clock_between_two_lines_tells_when_it_ends(
    storage: EventStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    times = iter([100.0, 110.0])
    monkeypatch.setattr("treadle.writers.metric_printer.time.perf_counter", lambda: next(times))
    printer = CommonMetricPrinter(max_iter=100, show=lines.append)
    for iteration in (19, 39):
        storage.iter = iteration
        storage.put_scalar("loss", 1.0)
        printer.write()
    assert lines == ["step 20/100  loss 1.000", "step 40/100  loss 1.000  30s left"]


def test_what_is_measured_as_throughput_goes_before_what_is_worked_out(storage: EventStorage) -> None:
    lines: list[str] = []
    put_times(storage, 0.5)
    storage.put_scalar(names.SAMPLES_PER_SECOND, 100.0)
    CommonMetricPrinter(32, show=lines.append).write()
    assert lines == ["step 0  100 samples/s  waits for data 25%"]


def test_a_loader_that_keeps_up_is_not_worth_a_word(storage: EventStorage) -> None:
    lines: list[str] = []
    storage.put_scalars({names.TIME: 0.5, names.DATA_TIME: 0.04, "loss": 1.0})
    CommonMetricPrinter(show=lines.append).write()
    assert lines == ["step 0  loss 1.000"]


def test_the_memory_of_a_gpu_is_shown(storage: EventStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    lines: list[str] = []
    storage.put_scalars({names.PEAK_MEMORY_MIB: 1536.0, "loss": 1.0})
    CommonMetricPrinter(show=lines.append).write()
    assert lines == ["step 0  loss 1.000  1.5 GiB"]


def test_metrics_that_somebody_else_shows_are_left_out(storage: EventStorage) -> None:
    lines: list[str] = []
    told: list[str] = []
    printer = CommonMetricPrinter(show=lines.append, told=told)
    told.append("Acc@1")
    storage.put_scalars({"Acc@1": 0.5, "loss": 1.0})
    printer.write()
    storage.iter = 1
    storage.put_scalar("Acc@1", 0.75)
    printer.write()
    assert lines == ["step 0  loss 1.000"]


def test_several_rates_are_shown_each(storage: EventStorage) -> None:
    lines: list[str] = []
    storage.put_scalars({"lr/head": 0.1, "lr/body": 0.01}, smoothing_hint=False)
    CommonMetricPrinter(show=lines.append).write()
    assert lines == ["step 0  lr/body 1.00e-02  lr/head 1.00e-01"]


def test_a_line_is_shown_only_if_there_is_something_new(storage: EventStorage) -> None:
    lines: list[str] = []
    printer = CommonMetricPrinter(max_iter=10, show=lines.append)
    printer.write()
    put_times(storage, 0.5)
    printer.write()
    printer.write()
    assert len(lines) == 1


def test_b32_the_final_evaluation_is_shown_at_the_end_without_a_time_to_go(storage: EventStorage) -> None:
    lines: list[str] = []
    printer = CommonMetricPrinter(max_iter=2, show=lines.append)
    put_times(storage, 0.5, 0.5)
    printer.write()
    storage.iter = 2
    storage.put_scalar("Acc@1", 0.75, smoothing_hint=False)
    printer.write()
    assert lines[1] == "step 2/2  Acc@1 0.7500  waits for data 25%"


def test_by_default_a_line_is_logged(storage: EventStorage, caplog: pytest.LogCaptureFixture) -> None:
    storage.progress = Progress(step=4)
    storage.put_scalar("loss", 0.5)
    with caplog.at_level(logging.INFO, logger="treadle"):
        CommonMetricPrinter().write()
    assert caplog.messages == ["step 4  loss 0.5000"]
