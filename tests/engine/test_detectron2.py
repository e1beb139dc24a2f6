"""Programs in the manner of detectron2's, and the names that come with them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine import detectron2_program as program
from tests.engine.parts import Classifier, make_config
from tests.interrupting import starts_of
from treadle.engine import (
    AMPTrainer,
    Checkpointer,
    DefaultTrainer,
    EagerTrainer,
    HookBase,
    SimpleTrainer,
    create_ddp_model,
    default_argument_parser,
    default_writers,
    dist,
    hooks,
    launch,
)
from treadle.errors import ConfigError, LossError, NonFiniteError
from treadle.events import EventStorage
from treadle.schedules import LRMultiplier


def arguments(folder: Path, *more: str) -> Any:
    return default_argument_parser().parse_args(["--config-file", str(folder), *more])


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]


def test_a_program_of_that_kind_trains_evaluates_writes_and_follows_its_multiplier(tmp_path: Path) -> None:
    trainer = program.main(arguments(tmp_path / "run"))
    rows = rows_in(tmp_path / "run")
    assert trainer.iter == 20
    assert [row["iteration"] for row in rows if "share" in row] == [9, 20]
    assert rows[-1]["share"] > 0.8
    by_iteration = {row["iteration"]: row for row in rows}
    assert (by_iteration[9]["lr"], by_iteration[14]["lr"]) == (0.5, 0.05)
    parts = by_iteration[4]
    assert parts["total_loss"] == pytest.approx(parts["classes"] + parts["weights"], rel=0.2)


def test_such_a_program_is_resumed_exactly(tmp_path: Path) -> None:
    whole = program.main(arguments(tmp_path / "whole"))
    program.main(arguments(tmp_path / "run", "train.train_iter=10"))
    # Its rates are those of a run of ten iterations until then, which the longer one has as well.
    halved = program.main(arguments(tmp_path / "run", "--resume"))
    assert (halved.start_iter, starts_of(tmp_path / "run")) == (10, [0, 10])
    assert halved.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"] == 0.05


def test_such_a_program_dies_and_goes_on_in_the_same_bits(tmp_path: Path, monkeypatch: Any) -> None:
    whole = program.main(arguments(tmp_path / "whole"))

    def dying(cfg: Any, model: nn.Module) -> Any:
        raise KeyError("no evaluation")

    with monkeypatch.context() as patched:
        patched.setattr(program, "do_test", dying)
        with pytest.raises(KeyError):
            program.main(arguments(tmp_path / "cut"))
    resumed = program.main(arguments(tmp_path / "cut", "--resume"))
    assert (resumed.start_iter, starts_of(tmp_path / "cut")) == (10, [0, 10])
    for own, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.slow
def test_such_a_program_starts_two_processes_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.detectron2_program", "--num-gpus", "2"]
    done = subprocess.run(
        [*command, "--config-file", str(tmp_path / "run"), "train.train_iter=10"],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in (tmp_path / "run" / "log.txt").read_text()
    assert [row["iteration"] for row in rows_in(tmp_path / "run") if "share" in row] == [10]


def test_a_plain_loop_of_that_kind_writes_what_it_puts(tmp_path: Path) -> None:
    model = program.Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LRMultiplier(optimizer, program.decay, max_iter=8)
    checkpointer = Checkpointer(model, tmp_path, optimizer=optimizer, scheduler=scheduler)
    start_iter = checkpointer.resume_or_load("", resume=True).get("iteration", -1) + 1
    periodic = hooks.PeriodicCheckpointer(checkpointer, 4, max_iter=8)
    writers = default_writers(tmp_path, 8) if dist.is_main_process() else []
    with EventStorage(start_iter) as storage:
        for data, iteration in zip(program.points(64, 0, True), range(start_iter, 8), strict=True):
            storage.iter = iteration
            losses = model(data)
            reduced = dist.reduce_dict(losses)
            storage.put_scalars(total_loss=sum(reduced.values()), **reduced)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
            storage.put_scalar("lr", optimizer.param_groups[0]["lr"], smoothing_hint=False)
            scheduler.step()
            if (iteration + 1) % 4 == 0:
                for writer in writers:
                    writer.write()
            periodic.step(iteration)
    rows = rows_in(tmp_path)
    assert [row["lr"] for row in rows if "lr" in row][-1] == pytest.approx(0.01)
    assert {"classes", "weights", "total_loss"} <= set(rows[-1])
    assert checkpointer.resume_or_load("", resume=True)["iteration"] == 7
    for writer in writers:
        writer.close()


def test_processes_that_nobody_started_are_asked_for_in_vain(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="--num-gpus=2 --num-machines=1, but this is the only process: have the progr"
    ):
        program.main(arguments(tmp_path, "--num-gpus", "2"))


def simple(kind: Any = SimpleTrainer, **options: Any) -> Any:
    torch.manual_seed(0)
    model = program.Detector()
    return kind(model, program.points(16, 0, False), torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_losses_are_all_values_or_one_tensor_and_the_model_gets_the_batch_as_it_is() -> None:
    class Single(program.Detector):
        def forward(self, batch: dict[str, Tensor]) -> Any:
            return sum(super().forward(batch).values())

    first = simple()
    torch.manual_seed(0)
    model = Single()
    second = SimpleTrainer(model, program.points(16, 0, False), torch.optim.SGD(model.parameters(), lr=0.1))
    for trainer in (first, second):
        trainer.train(0, 3)
    for own, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(own, other)
    totals = [trainer.storage.series("total_loss").values for trainer in (first, second)]
    assert totals[0] == totals[1]
    assert "classes" in first.storage.names()


def test_a_simple_step_is_that_of_a_loop_by_hand() -> None:
    trainer = simple()
    torch.manual_seed(0)
    model = program.Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in program.points(16, 0, False):
        optimizer.zero_grad()
        sum(model(batch).values()).backward()
        optimizer.step()
    trainer.train(0, 2)
    for own, other in zip(trainer.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_what_is_no_dict_of_losses_is_refused() -> None:
    class Wrong(program.Detector):
        def forward(self, batch: dict[str, Tensor]) -> Any:
            return [1]

    model = Wrong()
    trainer = SimpleTrainer(model, program.points(16, 0, False), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(LossError, match=r"the model returned \[1\]; a SimpleTrainer adds up all values of a dict"):
        trainer.train(0, 1)


def test_losses_are_reported_every_so_many_iterations() -> None:
    trainer = simple(gather_metric_period=3)
    trainer.train(0, 7)
    assert trainer.storage.series("total_loss").steps == [2, 5]
    with pytest.raises(ConfigError, match="gather_metric_period=0 must be at least 1"):
        simple(gather_metric_period=0)


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_iteration() -> None:
    trainer = simple()
    trainer.register_hooks(
        [hooks.CallbackHook(after_step=lambda own: own.iter == 2 and own.model.head.bias.data.fill_(float("nan")))]
    )
    with pytest.raises(NonFiniteError, match="total_loss is nan at iteration 3"):
        trainer.train(0, 30)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_mixed_precision_is_that_of_the_trainer(precision: torch.dtype) -> None:
    seen: list[torch.dtype] = []
    trainer = simple(AMPTrainer, precision=precision, log_grad_scaler=True)
    trainer.model.head.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    trainer.train(0, 3)
    assert set(seen) == {precision}
    assert ("[metric]grad_scaler" in trainer.storage.names()) == (precision is torch.float16)


def test_a_scaler_gives_its_first_scale_and_its_interval() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    trainer = simple(AMPTrainer, grad_scaler=scaler, log_grad_scaler=True)
    trainer.train(0, 5)
    assert trainer.storage.series("[metric]grad_scaler").values == [8.0, 16.0, 16.0, 32.0, 32.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": torch.float32}, r"AMPTrainer\(precision=torch.float32\): use torch.float16 or torch.bfloat16"),
        ({"grad_scaler": 3}, r"AMPTrainer\(grad_scaler=3\) is no torch GradScaler"),
        (
            {"grad_scaler": torch.amp.GradScaler("cpu", growth_factor=4.0)},
            "growth_factor=4.0 and backoff_factor=0.5: the scale is doubled and halved",
        ),
        (
            {"grad_scaler": torch.amp.GradScaler("cpu"), "precision": torch.bfloat16},
            "only float16 scales the loss",
        ),
    ],
)
def test_mixed_precision_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simple(AMPTrainer, **options)


def test_a_step_of_ones_own_scales_by_itself_and_reports() -> None:
    class Own(AMPTrainer):
        def run_step(self) -> None:
            losses = self.model(next(self._data_loader_iter))
            self.optimizer.zero_grad()
            self.grad_scaler.scale(sum(losses.values())).backward()
            self.after_backward()
            self._write_metrics(losses, 0.0)
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()

    calls: list[int] = []
    trainer = simple(Own, grad_scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
    trainer.register_hooks([Backward(calls)])
    trainer.train(0, 3)
    plain = simple()
    plain.train(0, 3)
    assert calls == [0, 1, 2]
    assert trainer.storage.series("total_loss").values == plain.storage.series("total_loss").values
    for own, other in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(own, other)


class Backward(HookBase):
    """Takes note of when it is called, and of the norm of the gradient then."""

    def __init__(self, calls: list[int]) -> None:
        self.calls = calls
        self.norms: list[float] = []

    def after_backward(self) -> None:
        self.calls.append(self.trainer.iter)
        model = self.trainer.core.model
        self.norms.append(float(torch.nn.utils.get_total_norm([one.grad for one in model.parameters()])))


@pytest.mark.parametrize("amp", ["fp32", "fp16"])
@pytest.mark.parametrize("parts", [1, 2])
def test_hooks_see_the_gradient_of_the_whole_batch_before_it_is_clipped(tmp_path: Path, parts: int, amp: str) -> None:
    def ran(folder: Path, **train: Any) -> Backward:
        trainer = DefaultTrainer(
            make_config(folder, train_iter=3, amp={"enabled": amp == "fp16", "dtype": "fp16"}, **train)
        )
        for group in trainer.optimizer.param_groups:
            group["clip_grad_max_norm"] = 0.01
        hook = Backward([])
        trainer.register_hooks([hook])
        trainer.train()
        assert hook.calls == [0, 1, 2]
        return hook

    whole = ran(tmp_path / "whole", train_micro_batch_size=8, num_accumulation_steps=1)
    found = ran(tmp_path / "parts", train_micro_batch_size=8 // parts, num_accumulation_steps=parts)
    assert min(whole.norms) > 0.05
    assert found.norms == pytest.approx(whole.norms, rel=1e-2)


def test_a_step_with_a_hook_inside_is_not_recorded(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path, train_iter=2, execution="auto"))
    trainer.register_hooks([Backward([])])
    trainer.train()
    assert trainer.core.create_recorder() is None
    trainer.core.execution = "graph"
    with pytest.raises(
        ConfigError, match=r"train.execution='graph': a hook has after_backward, which a replay does not"
    ):
        trainer.core.create_recorder()


def test_a_trainer_may_have_after_backward_itself() -> None:
    calls: list[str] = []

    class Own(SimpleTrainer):
        def after_backward(self) -> None:
            calls.append(f"before {self.iter}")
            super().after_backward()

    trainer = simple(Own)
    seen: list[int] = []
    trainer.register_hooks([Backward(seen)])
    trainer.train(0, 2)
    assert (calls, seen) == (["before 0", "before 1"], [0, 1])


def test_another_loader_is_drawn_from_at_once_inside_a_run_too() -> None:
    seen: list[float] = []

    class Seeing(program.Detector):
        def forward(self, batch: dict[str, Tensor]) -> Any:
            seen.append(batch["inputs"][0, 0].item())
            return super().forward(batch)

    def loader(value: float) -> Any:
        return [{"inputs": torch.full((4, 2), value), "labels": torch.zeros(4, dtype=torch.long)}] * 2

    model = Seeing()
    trainer = SimpleTrainer(model, loader(1.0), torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.reset_data_loader(lambda: loader(2.0))
    reset = hooks.CallbackHook(after_step=lambda own: own.iter == 1 and own.reset_data_loader(lambda: loader(3.0)))
    trainer.register_hooks([reset])
    trainer.train(0, 5)
    assert seen == [2.0, 2.0, 3.0, 3.0, 3.0]
    assert trainer.core.consumed_samples == 20


def test_another_loader_is_drawn_from_by_a_step_of_ones_own() -> None:
    seen: list[float] = []

    class Own(EagerTrainer):
        def run_step(self) -> None:
            seen.append(float(next(self._data_loader_iter)))
            self.optimizer.step()

    model = Classifier()
    trainer = Own(model, [torch.tensor(1.0)], torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.register_hooks(
        [
            hooks.CallbackHook(
                before_step=lambda own: own.iter == 2 and own.reset_data_loader(lambda: [torch.tensor(2.0)])
            )
        ]
    )
    trainer.train(0, 4)
    assert seen == [1.0, 1.0, 2.0, 2.0]


def test_rates_follow_a_function_of_how_far_the_run_is() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=2.0)
    schedule = LRMultiplier(optimizer, lambda where: 1.0 - where, max_iter=4)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [2.0, 1.5, 1.0, 0.5]
    later = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=2.0)
    LRMultiplier(later, lambda where: 1.0 - where, max_iter=4, last_iter=1)
    assert later.param_groups[0]["lr"] == 1.0
    assert schedule.state_dict() == {"base_lrs": [2.0], "last_epoch": 4}
    with pytest.raises(ConfigError, match=r"LRMultiplier\(multiplier=3\) must be a function of how far the run is"):
        LRMultiplier(optimizer, 3, 4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"LRMultiplier\(max_iter=0\) must be at least 1"):
        LRMultiplier(optimizer, lambda where: 1.0, 0)


def test_values_of_the_last_iterations_are_counted() -> None:
    storage = EventStorage()
    for iteration in (0, 5, 10, 12):
        storage.put_scalar("loss", torch.tensor(1.0), cur_iter=iteration)
    assert [storage.count_samples("loss", window) for window in (1, 3, 8, 20)] == [1, 2, 3, 4]


def write_place(folder: Path) -> None:
    processes = __import__("treadle.parallel").parallel.Processes("cpu")
    (folder / f"{processes.rank}").write_text(f"{processes.size} {os.environ['LOCAL_WORLD_SIZE']}")


def test_processes_are_started_by_a_program(tmp_path: Path) -> None:
    launch(write_place, 2, args=(tmp_path,), dist_url="auto", timeout=60.0)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1"]
    assert (tmp_path / "1").read_text() == "2 2"
    calls: list[int] = []
    launch(calls.append, 1, args=(7,))
    assert calls == [7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_gpus_per_machine": -1}, "launch: num_gpus_per_machine=-1 must be a whole number from 0 up"),
        ({"num_gpus_per_machine": 1, "num_machines": 2, "machine_rank": 2}, "machine_rank=2, but there are 2 machines"),
        (
            {"num_gpus_per_machine": 1, "num_machines": 2, "dist_url": "auto"},
            "dist_url='auto' is no place where the processes of 2 machines can meet; give 'tcp://host:port'",
        ),
        ({"num_gpus_per_machine": 2, "dist_url": "file:///tmp/x"}, "is no place where the processes of 1 machine can"),
    ],
)
def test_processes_that_cannot_meet_are_not_started(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch(print, **options)


def test_a_model_is_not_wrapped() -> None:
    model = nn.Linear(1, 1)
    assert create_ddp_model(model, broadcast_buffers=False, find_unused_parameters=True) is model
    with pytest.raises(ConfigError, match="gradients are exchanged as they are; leave it out"):
        create_ddp_model(model, fp16_compression=True)
