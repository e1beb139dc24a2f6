"""The state of an optimizer on the host: the same updates, with less memory of the device."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from tests.execution.recording import TapeRecorder
from tests.guards.no_sync import DEVICES, no_sync
from tests.interrupting import (
    assert_same_bits,
    check,
    make_trainer,
    momentum,
    network,
    samples,
    simply,
    state_of,
    updates_of,
)
from tests.spoiling import spoilt
from treadle import Phase, Trainer
from treadle.errors import ConfigError
from treadle.memory.offload import KNOWN, OffloadedState, check_offload

OPTIMIZERS: dict[str, Any] = {
    "SGD": partial(torch.optim.SGD, lr=0.05),
    "momentum": momentum,
    "fused momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, fused=True),
    "Adam": partial(torch.optim.Adam, lr=0.05, amsgrad=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.05),
    "fused AdamW": partial(torch.optim.AdamW, lr=0.05, fused=True),
    "foreach AdamW": partial(torch.optim.AdamW, lr=0.05, foreach=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "NAdam": partial(torch.optim.NAdam, lr=0.05),
}


def train(offload: bool, *callbacks: Any, **kwargs: Any) -> Any:
    run = {name: kwargs.pop(name) for name in ("clip_norm", "create_scheduler_fn", "data") if name in kwargs}
    trainer = make_trainer(None, *callbacks, offload_optimizer=offload, **kwargs)
    trainer.train(run.pop("data", samples()), 2, **run)
    return trainer


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the small models of this file updated in several parts."""
    monkeypatch.setattr("treadle.loop.update.OffloadedState", partial(OffloadedState, part_bytes=40))


# Numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}, {"on_nonfinite": "skip"}, {"precision": "bf16"}], ids=str)
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_update_part_by_part_has_the_bits_of_one_made_at_once(
    name: str, settings: dict[str, Any], device: str
) -> None:
    options = {"optimizer": OPTIMIZERS[name], "device": device, **settings}
    assert_same_bits(state_of(train(True, **options)), state_of(train(False, **options)))


@pytest.mark.parametrize("name", ["momentum", "AdamW", "fused AdamW", "fused momentum"])
@pytest.mark.parametrize("bad", [1, 4])
def test_an_update_that_is_left_out_leaves_no_trace_in_any_part(name: str, bad: int) -> None:
    options = {"optimizer": OPTIMIZERS[name], "on_nonfinite": "skip", "data": spoilt(bad)}
    offloaded, at_once = train(True, **options), train(False, **options)
    assert_same_bits(state_of(offloaded), state_of(at_once))
    assert offloaded.storage.series("skipped_steps").values[-1] == 2


@pytest.mark.parametrize("name", ["momentum", "fused AdamW"])
def test_it_works_with_a_scaled_loss(name: str) -> None:
    options = {"optimizer": OPTIMIZERS[name], "precision": "fp16"}
    offloaded, at_once = train(True, **options), train(False, **options)
    assert_same_bits(state_of(offloaded), state_of(at_once))
    assert offloaded.precision.scaler.get_scale() == at_once.precision.scaler.get_scale()


def test_a_schedule_moves_on_once_an_update() -> None:
    options = {"create_scheduler_fn": partial(ExponentialLR, gamma=0.5), "optimizer": OPTIMIZERS["AdamW"]}
    offloaded, at_once = train(True, **options), train(False, **options)
    assert_same_bits(state_of(offloaded), state_of(at_once))
    assert offloaded.optimizer.param_groups[0]["lr"] == 0.05 * 0.5**6


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_weights_that_lie_in_memory_as_images_do_are_updated_as_at_once(name: str) -> None:
    def run(offload: bool) -> Any:
        generator = torch.Generator().manual_seed(0)
        shape = (2, 3, 2, 2)
        weight = nn.Parameter(torch.randn(shape, generator=generator).to(memory_format=torch.channels_last))
        optimizer = OPTIMIZERS[name]([weight])
        with OffloadedState(optimizer) if offload else nullcontext():
            for round_ in range(4):
                if round_ == 2:
                    # A file keeps the values, and not how they lie in memory.
                    saved = optimizer.state_dict()
                    if offload:
                        saved["state"] = {0: {key: _flat(value) for key, value in saved["state"].get(0, {}).items()}}
                    optimizer.load_state_dict(saved)
                weight.grad = torch.randn(shape, generator=generator).to(memory_format=torch.channels_last)
                optimizer.step()
        return {"weight": weight.detach(), "optimizer": optimizer.state_dict()}

    assert_same_bits(run(True), run(False))


def _flat(value: Any) -> Any:
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def test_weights_without_elements_belong_to_their_own_group() -> None:
    groups = [
        {"params": [nn.Parameter(torch.ones(size))], "lr": rate} for size, rate in ((0, 1.0), (2, 0.5), (0, 0.25))
    ]
    weights = [group["params"][0] for group in groups]  # type: ignore[index]
    optimizer = torch.optim.SGD(groups)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    rates: list[tuple[int, float]] = []
    update = optimizer.step

    def noted(*args: Any) -> Any:
        rates.extend((len(one), group["lr"]) for group in optimizer.param_groups for one in group["params"])
        return update(*args)

    optimizer.step = noted  # type: ignore[method-assign, assignment]
    with OffloadedState(optimizer, part_bytes=8):
        optimizer.step()
    assert rates == [(0, 1.0), (2, 0.5), (0, 0.25)]
    assert weights[1].tolist() == [0.5, 0.5]


def test_groups_with_rates_of_their_own_keep_them() -> None:
    def grouped(model: Any) -> Any:
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].parameters(), "lr": 0.01}]
        return torch.optim.AdamW(groups)

    def run(offload: bool) -> Any:
        model = network()
        optimizer = grouped(model)
        trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=(), seed=1, device="cpu", offload_optimizer=offload)
        trainer.train(samples(), 2)
        return trainer

    assert_same_bits(state_of(run(True)), state_of(run(False)))


def test_several_optimizers_are_all_offloaded() -> None:
    class Alternating(Trainer):
        def phases(self, epoch: int) -> Any:
            for name in ("one", "two"):
                stream, loss = self._train_dataloader, self.calculate_train_batch_loss
                yield Phase(name, stream, loss, self.optimizer[name], steps=2)  # type: ignore[arg-type]

    def run(offload: bool) -> Any:
        model: Any = network()
        optimizers = {"one": momentum(model[0].parameters()), "two": torch.optim.Adam(model[3].parameters())}
        trainer = Alternating(
            model, nn.MSELoss(), optimizers, callbacks=(), seed=1, device="cpu", offload_optimizer=offload
        )
        trainer.train(samples(), 2)
        return trainer

    assert_same_bits(state_of(run(True)), state_of(run(False)))


def test_a_loop_of_the_users_own_is_offloaded_and_counts_its_updates_once() -> None:
    class Own(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            self.model.train()
            for inputs, targets in train_dl:
                self.loss_func(self.model(inputs), targets).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()

    options = {"kind": Own, "optimizer": OPTIMIZERS["AdamW"]}
    offloaded, at_once = train(True, **options), train(False, **options)
    assert offloaded.progress.step == 6
    assert_same_bits(state_of(offloaded), state_of(at_once))


@pytest.mark.parametrize("device", DEVICES)
def test_an_offloaded_update_reads_nothing(device: str) -> None:
    class Guarded(Trainer):
        def update(self, phase: Phase, window: list[Any]) -> None:
            with no_sync(self.device.type):
                super().update(phase, window)

    assert train(True, kind=Guarded, optimizer=momentum, device=device).progress.step == 6


# Where the state is ---------------------------------------------------------------------------------------------


def one_weight(**kwargs: Any) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.ones(4))
    return weight, torch.optim.Adam([weight], lr=0.5, **kwargs)


def test_state_is_on_the_host_between_updates_in_the_same_memory_each_time() -> None:
    weight, optimizer = one_weight()
    places = []
    with OffloadedState(optimizer):
        for _ in range(3):
            weight.grad = torch.ones(4)
            optimizer.step()
            places.append({name: value.data_ptr() for name, value in optimizer.state[weight].items()})
    assert places[0] == places[1] == places[2]
    assert optimizer.state[weight]["step"].item() == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("fused", [True, False])
def test_on_cuda_state_is_in_pinned_memory_and_little_of_it_on_the_device(fused: bool) -> None:
    weights = [nn.Parameter(torch.ones(2**18, device="cuda")) for _ in range(16)]
    optimizer = torch.optim.AdamW(weights, fused=fused)
    torch.cuda.synchronize()
    with OffloadedState(optimizer, part_bytes=2**20) as offloaded:
        for _ in range(2):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            optimizer.step()
            taken = torch.cuda.max_memory_allocated() - before
            offloaded.wait()
            # All of the state is 32 MiB; that of a part is two, and a few parts are on their way at once.
            assert taken < 16 * 2**20
        states = [optimizer.state[weight][name] for weight in weights for name in ("exp_avg", "exp_avg_sq")]
        assert all(state.is_pinned() for state in states)
    assert all(optimizer.state[weight]["exp_avg"].is_cuda for weight in weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_cuda_state_that_was_made_before_the_weights_were_moved_is_pinned_too() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adagrad([weight], lr=1.0)
    weight.data = weight.data.cuda()
    with OffloadedState(optimizer) as offloaded:
        assert optimizer.state[weight]["sum"].is_pinned()
        weight.grad = torch.full((4,), 2.0, device="cuda")
        optimizer.step()
        offloaded.wait()
        assert optimizer.state[weight]["sum"].is_pinned()
        assert optimizer.state[weight]["sum"].tolist() == [4, 4, 4, 4]
    assert optimizer.state[weight]["sum"].is_cuda
    assert optimizer.state[weight]["step"].is_cpu
    assert weight.tolist() == [0, 0, 0, 0]


def test_state_that_was_there_before_and_is_there_afterwards_is_the_optimizers_own() -> None:
    weight, optimizer = one_weight()
    other, reference = one_weight()
    for round_ in range(3):
        for one, its in ((weight, optimizer), (other, reference)):
            one.grad = torch.full((4,), float(round_ + 1))
            with OffloadedState(its) if its is optimizer and round_ == 1 else nullcontext():
                its.step()
    assert_same_bits(optimizer.state_dict(), reference.state_dict())
    assert "step" not in vars(optimizer)


def test_weights_without_a_gradient_are_left_alone() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=1.0, momentum=0.5)
    weights[1].grad = torch.ones(2)
    with OffloadedState(optimizer, part_bytes=8):
        optimizer.step()
    assert [weight.tolist() for weight in weights] == [[1, 1], [0, 0], [1, 1]]
    assert list(optimizer.state) == [weights[1]]


def test_hooks_of_the_optimizer_run_once_an_update_and_see_all_weights() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    seen: list[tuple[str, int]] = []
    optimizer.register_step_pre_hook(lambda one, *_: seen.append(("before", len(one.param_groups[0]["params"]))))
    optimizer.register_step_post_hook(lambda one, *_: seen.append(("after", len(one.param_groups[0]["params"]))))
    for weight in weights:
        weight.grad = torch.ones(2)
    with OffloadedState(optimizer, part_bytes=8):
        optimizer.step()
    assert seen == [("before", 3), ("after", 3)]


# Saving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["AdamW", "fused AdamW", "momentum"])
def test_a_run_goes_on_exactly_after_cuts(tmp_path: Path, optimizer: str) -> None:
    def make(run_dir: Path, *callbacks: Any) -> Any:
        return make_trainer(run_dir, *callbacks, optimizer=OPTIMIZERS[optimizer], offload_optimizer=True)

    check(tmp_path, make, simply)


@pytest.mark.parametrize("offloads", [(True, False), (False, True)], ids=str)
def test_a_run_may_go_on_with_its_state_elsewhere(tmp_path: Path, offloads: tuple[bool, bool]) -> None:
    whole = make_trainer(tmp_path / "whole")
    simply(whole)
    make_trainer(tmp_path / "run", offload_optimizer=offloads[0]).train(samples(), 2, save_every=2, log_every=2)
    resumed = make_trainer(tmp_path / "run", offload_optimizer=offloads[1])
    simply(resumed)
    assert updates_of(resumed) == (6, 6)
    assert_same_bits(state_of(resumed), state_of(whole))


def test_loading_keeps_the_types_that_torch_would_give() -> None:
    weight, optimizer = one_weight()
    weight.grad = torch.ones(4)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].double()
    other, fresh = one_weight()
    with OffloadedState(fresh):
        fresh.load_state_dict(saved)
        assert fresh.state[other]["exp_avg"].dtype == torch.float32
        assert fresh.state[other]["step"].item() == 1


# Where it cannot be -----------------------------------------------------------------------------------------------


class Odd(torch.optim.SGD):
    """An optimizer with a step of its own."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"offload_optimizer": "cpu"}, "offload_optimizer='cpu' must be True or False"),
        (
            {"offload_optimizer": True, "optimizer": torch.optim.LBFGS},
            "offload_optimizer=True updates the weights part by part, which is not known to be right for LBFGS; use "
            f"one of {[kind.__name__ for kind in KNOWN]}",
        ),
        (
            {"offload_optimizer": True, "optimizer": Odd},
            "offload_optimizer=True updates the weights part by part, which is not known to be right for Odd; use "
            f"one of {[kind.__name__ for kind in KNOWN]}",
        ),
    ],
)
def test_what_cannot_be_offloaded_is_refused_when_the_trainer_is_built(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(None, **arguments)
    assert str(caught.value) == message


def test_recorded_steps_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        check_offload(True, [], "graph")
    assert str(caught.value) == (
        "offload_optimizer=True brings state from the host in every step, which execution='graph' cannot record; use "
        "execution='eager' or 'compile'"
    )


def test_steps_that_would_be_recorded_by_themselves_are_not_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Recorded(Trainer):
        def create_recorder(self) -> Any:
            return TapeRecorder()

    train(True, kind=Recorded, execution="auto")
    said = [line for line in capsys.readouterr().out.splitlines() if "offload" in line]
    assert said == [
        "execution='auto' is eager from step 1 on: offload_optimizer=True brings state from the host in every step; "
        "leave it out"
    ]


def test_the_choice_is_in_the_config_of_the_run() -> None:
    assert train(True).run_config.to_dict()["offload_optimizer"] is True
