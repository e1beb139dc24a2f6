"""Micro-batches that shrink when memory runs out, while the batch stays what it was."""

from collections import namedtuple
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.interrupting import (
    CutAt,
    CutError,
    adamw,
    assert_same_bits,
    assert_same_run,
    make_trainer,
    momentum,
    plain_network,
    samples,
    state_of,
    updates_of,
)
from treadle import TrainerCallback
from treadle.data import size_of
from treadle.errors import ConfigError
from treadle.loop.oom_retry import OomRetry, split_batch
from treadle.trainer import Trainer


class Narrow(nn.Module):
    """A linear model for which memory runs out above so many samples at once; it remembers what it was given."""

    def __init__(self, most: int = 100) -> None:
        super().__init__()
        self.inner = plain_network()
        self.most = most
        self.sizes: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append(len(inputs))
        if len(inputs) > self.most:
            raise torch.OutOfMemoryError(f"no room for {len(inputs)} samples")
        outputs: Tensor = self.inner(inputs)
        return outputs


def train(most: int, *callbacks: Any, run_dir: Path | None = None, optimizer: Any = momentum, **kwargs: Any) -> Any:
    microbatch = kwargs.pop("microbatch", "auto")
    kind = kwargs.pop("kind", Trainer)
    trainer = make_trainer(
        run_dir, *callbacks, build=partial(Narrow, most), microbatch=microbatch, optimizer=optimizer, kind=kind
    )
    trainer.train(samples(), **{"num_epochs": 2, "resume": None if run_dir is None else "auto", **kwargs})
    return trainer


def assert_close(left: Any, right: Any) -> None:
    for name, tensor in right.model.state_dict().items():
        torch.testing.assert_close(left.model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


# In a run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "parts"), [(8, 1), (7, 2), (4, 2), (3, 4), (2, 4), (1, 8)])
@pytest.mark.parametrize("optimizer", [momentum, adamw])
def test_the_micro_batch_is_halved_until_it_fits_and_the_batch_stays(most: int, parts: int, optimizer: Any) -> None:
    cut, whole = train(most, optimizer=optimizer), train(100, optimizer=optimizer)
    assert_close(cut, whole)
    assert cut.this_run.updater.splits.parts == parts
    assert (cut.progress.step, cut.progress.samples) == (whole.progress.step, whole.progress.samples) == (6, 48)
    assert cut.model.sizes[-parts:] == [8 // parts] * parts
    assert cut.run_history.get_metric_values("train_loss_epoch") == pytest.approx(
        whole.run_history.get_metric_values("train_loss_epoch"), rel=1e-6
    )


def test_only_the_first_steps_are_tried_in_vain() -> None:
    assert train(2).model.sizes == [8, 4, *[2] * 24]


@pytest.mark.parametrize("most", [2, 3, 5])
def test_batches_that_do_not_divide_evenly_are_cut_as_evenly_as_it_goes(most: int) -> None:
    cut, whole = train(most, per_device_batch_size=7), train(100, per_device_batch_size=7)
    assert max(cut.model.sizes[-8:]) <= most
    assert_close(cut, whole)


def test_accumulation_goes_on_over_the_parts() -> None:
    cut, whole = train(4, gradient_accumulation_steps=2), train(100, gradient_accumulation_steps=2)
    assert_close(cut, whole)
    assert cut.progress.step == 4


class GrowsInTheMiddle(Narrow):
    """A model for which memory runs out at the second micro-batch of the first window, and not at the first."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.most = 8 if len(self.sizes) == 0 else 4
        return super().forward(inputs)


def test_a_loss_of_an_attempt_in_vain_is_counted_once() -> None:
    def run(build: Any) -> Any:
        trainer = make_trainer(None, build=build, microbatch="auto", optimizer=momentum)
        trainer.train(samples(), 1, gradient_accumulation_steps=3)
        return trainer

    cut, whole = run(GrowsInTheMiddle), run(Narrow)
    assert cut.model.sizes == [8, 8, 4, 4, 4, 4, 4, 4]
    assert_close(cut, whole)
    assert cut.run_history.get_metric_values("train_loss_epoch") == pytest.approx(
        whole.run_history.get_metric_values("train_loss_epoch"), rel=1e-6
    )
    assert cut.progress.samples == 24


def test_buffers_move_once_though_the_step_was_tried_twice() -> None:
    class Counting(GrowsInTheMiddle):
        def __init__(self, most: int = 100) -> None:
            super().__init__(most)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, inputs: Tensor) -> Tensor:
            outputs = super().forward(inputs)
            self.get_buffer("seen").add_(len(inputs))
            return outputs

    trainer = make_trainer(None, build=Counting, microbatch="auto", optimizer=momentum)
    trainer.train(samples(), 1, gradient_accumulation_steps=3)
    assert trainer.model.seen.item() == 24


def test_an_update_that_was_made_is_not_made_again() -> None:
    class Exhausting(torch.optim.SGD):
        """An optimizer for which memory runs out after the first step has changed the weights."""

        failed = False

        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            if not self.failed:
                self.failed = True
                raise torch.OutOfMemoryError("no room for the state")

    with pytest.raises(torch.OutOfMemoryError, match="no room for the state"):
        train(100, optimizer=partial(Exhausting, lr=0.1))


def test_it_is_said_and_what_is_tried_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    train(3)
    said = [line for line in capsys.readouterr().out.splitlines() if "memory" in line]
    assert said == [
        "memory ran out: each micro-batch is cut into 2, the batch stays the same",
        "memory ran out: each micro-batch is cut into 4, the batch stays the same",
    ]


def test_the_log_of_the_run_says_it_too(tmp_path: Path) -> None:
    train(4, run_dir=tmp_path)
    assert "each micro-batch is cut into 2" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("parts", [2, 4])
def test_callbacks_see_the_parts(parts: int) -> None:
    class Sizes(TrainerCallback):
        def __init__(self) -> None:
            self.ended: list[int] = []

        def on_train_step_end(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
            self.ended.append(size_of(batch))

    sizes = Sizes()
    train(8 // parts, sizes, num_epochs=1)
    assert sizes.ended == [8 // parts] * 3 * parts


def test_skipping_leaves_no_trace_of_an_attempt_in_vain() -> None:
    trainer = make_trainer(None, build=partial(Narrow, 4), microbatch="auto", on_nonfinite="skip", optimizer=momentum)
    trainer.train(samples(), 2)
    assert_close(trainer, train(100))
    assert trainer.storage.series("skipped_steps").values[-1] == 0


# Resumed --------------------------------------------------------------------------------------------------


def test_the_chosen_size_is_saved_and_nothing_is_tried_in_vain_after_a_resume(tmp_path: Path) -> None:
    whole = train(2, run_dir=tmp_path / "whole", save_every=1)
    with pytest.raises(CutError):
        train(2, CutAt(4), run_dir=tmp_path / "cut", save_every=1)
    resumed = train(2, run_dir=tmp_path / "cut", save_every=1)
    assert updates_of(resumed) == (3, 3)
    assert resumed.model.sizes == [2] * 4 * 3
    assert_same_run(resumed, whole)


def test_a_new_run_of_the_same_trainer_begins_with_whole_batches() -> None:
    trainer = train(4)
    trainer.model.sizes.clear()
    trainer.train(samples(), 1)
    assert trainer.model.sizes[0] == 8


# Where it cannot help -------------------------------------------------------------------------------------


def test_by_default_running_out_of_memory_is_an_error_with_its_place() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="no room for 8 samples"):
        train(4, microbatch="fixed")


def test_a_single_sample_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="no room for 1 samples"):
        train(0)


def test_single_samples_are_tried_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        train(0)
    said = [line for line in capsys.readouterr().out.splitlines() if "memory ran out" in line]
    assert [line.partition(",")[0].rpartition(" ")[2] for line in said] == ["2", "4", "8"]


def test_another_error_is_not_taken_for_memory() -> None:
    class Failing(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            raise RuntimeError("out of ideas")

    with pytest.raises(RuntimeError, match="out of ideas"):
        train(8, kind=Failing)


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(None, microbatch=4)
    assert str(caught.value) == "microbatch=4 is unknown; use one of ('fixed', 'auto')"


# Cutting --------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["inputs", "targets"])


def test_every_sample_is_in_exactly_one_part_for_any_size_and_number() -> None:
    for size in range(1, 12):
        for parts in range(1, 14):
            cut = split_batch((torch.arange(size), torch.arange(size) * 2), parts)
            assert len(cut) == min(size, parts)
            assert sorted(torch.cat([part[0] for part in cut]).tolist()) == list(range(size))
            assert all(torch.equal(part[0] * 2, part[1]) for part in cut)
            sizes = [size_of(part) for part in cut]
            assert max(sizes) - min(sizes) <= 1
            assert sizes[0] == max(sizes)


def test_the_form_of_a_batch_is_kept() -> None:
    batch = {"ids": torch.arange(4), "more": [torch.arange(4), (torch.arange(4), "word")], "scale": torch.tensor(2.0)}
    second = split_batch(batch, 2)[1]
    assert second["ids"].tolist() == second["more"][0].tolist() == second["more"][1][0].tolist() == [2, 3]
    assert (second["more"][1][1], second["scale"].item()) == ("word", 2.0)
    pair = split_batch(Pair(torch.arange(4), torch.arange(4)), 2)[0]
    assert isinstance(pair, Pair)
    assert pair.targets.tolist() == [0, 1]


class Table(list[int]):
    """Rows of a type of its own."""

    def take_rows(self, first: int, last: int) -> "Table":
        return Table(self[first:last])


def test_a_batch_of_a_type_of_its_own_cuts_itself_if_it_has_the_samples() -> None:
    one, other = split_batch((torch.arange(4), Table([5, 6, 7, 8]), Table([9])), 2)
    assert [type(one[1]), one[1], one[2]] == [Table, [5, 6], [9]]
    assert [type(other[1]), other[1], other[2]] == [Table, [7, 8], [9]]


def test_a_list_with_an_entry_for_each_sample_is_cut_along_its_entries() -> None:
    boxes = [{"boxes": torch.zeros(4, 2), "id": torch.tensor(place)} for place in range(4)]
    names = ["a", "b", "c", "d"]
    images, targets, words = split_batch((torch.arange(4.0), boxes, names), 2)[1]
    assert images.tolist() == [2.0, 3.0]
    assert [target["id"].item() for target in targets] == [2, 3]
    assert [tuple(target["boxes"].shape) for target in targets] == [(4, 2), (4, 2)]
    assert words == ["c", "d"]


def test_parts_are_views_of_the_batch() -> None:
    batch = torch.arange(4.0)
    assert split_batch(batch, 2)[0].untyped_storage().data_ptr() == batch.untyped_storage().data_ptr()


def test_the_number_of_parts_is_doubled_saved_and_restored() -> None:
    splits = OomRetry()
    window = [torch.arange(4), torch.arange(4)]
    assert splits.cut(window) is window
    splits.halve()
    splits.halve()
    other = OomRetry()
    other.load_state_dict(splits.state_dict())
    assert [part.tolist() for part in other.cut([torch.arange(4)])] == [[0], [1], [2], [3]]
    assert len(other.cut(window)) == 8


def test_a_run_that_never_runs_out_has_the_bits_of_one_that_is_fixed() -> None:
    assert_same_bits(state_of(train(100)), state_of(train(100, microbatch="fixed")))
