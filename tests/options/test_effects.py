"""Every option does the same behind every door: what it changes is looked at from outside of the loop."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LinearLR, StepLR

from tests.engine.test_keys import EFFECTS as ENGINE_EFFECTS
from tests.options.doors import CORE_NAMES, DOORS, Door, Eye, Updates
from treadle.callback import TrainerCallback
from treadle.checkpoint import Policy
from treadle.engine.config import keys as of_engine
from treadle.errors import CheckpointError, ConfigError, NonFiniteError
from treadle.execution import Execution
from treadle.optim.lr_scaling import LRScaling
from treadle.parallel import Plan, processes
from treadle.precision import LossScaling
from treadle.schedules.placeholders import TrainerPlaceholderValues as P
from treadle.spec import Refused, check_names, spec_options

Effect = Callable[[Door, Path, pytest.MonkeyPatch], None]
EFFECTS: dict[str, Effect] = {}
OPTIONS = [*spec_options("trainer"), *spec_options("train")]


def effect_of(name: str) -> Callable[[Effect], Effect]:
    """Name the option whose effect a function shows."""

    def register(effect: Effect) -> Effect:
        assert name not in EFFECTS, f"{name} is shown twice"
        EFFECTS[name] = effect
        return effect

    return register


def seen(door: Door, folder: Path, *callbacks: Any, eye: Eye | None = None, **given: Any) -> Eye:
    """Return what was seen of a training."""
    found = Eye() if eye is None else eye
    door.train(folder, found, *callbacks, **given)
    return found


def checkpoints(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in the folder of a run."""
    return sorted(int(one.name.removeprefix("step_")) for one in (folder / "checkpoints").glob("step_*"))


# What a trainer is built with -----------------------------------------------------------------------------------


@effect_of("seed")
def the_order_of_the_data_follows_from_it(door: Door, folder: Path, patch: Any) -> None:
    one, same, other = ([x.total for x in seen(door, folder, seed=seed, max_steps=2).trained] for seed in (1, 1, 2))
    assert one == same != other


@effect_of("run_dir")
def the_run_is_kept_there(door: Door, folder: Path, patch: Any) -> None:
    seen(door, folder, run_dir=folder / "here", max_steps=1)
    assert {"config.yaml", "manifest.json", "metrics.jsonl"} <= {one.name for one in (folder / "here").iterdir()}


def autocast() -> Any:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


@effect_of("precision")
def forward_passes_have_the_format(door: Door, folder: Path, patch: Any) -> None:
    assert seen(door, folder, eye=Eye(autocast), max_steps=1).found == {None}
    assert seen(door, folder, eye=Eye(autocast), max_steps=1, precision="bf16").found == {torch.bfloat16}


@effect_of("loss_scaling")
def the_loss_is_scaled_as_asked(door: Door, folder: Path, patch: Any) -> None:
    asked = given(door, "loss_scaling", LossScaling(initial=8.0))
    core = door.train(folder, Eye(), precision="fp16", loss_scaling=asked, max_steps=2)
    assert core.precision.scaler.get_scale() == 8.0


def given(door: Door, option: str, value: Any) -> Any:
    """Return a value as a config has it, where the door has one."""
    return {k: v for k, v in asdict(value).items() if v is not None} if door.name == "recommender" else value


@effect_of("matmul_precision")
def products_are_rounded_so_within_the_run(door: Door, folder: Path, patch: Any) -> None:
    before = torch.get_float32_matmul_precision()
    eye = Eye(torch.get_float32_matmul_precision)
    assert seen(door, folder, eye=eye, max_steps=1, matmul_precision="medium").found == {"medium"} != {before}
    assert torch.get_float32_matmul_precision() == before


@effect_of("convolution_precision")
def convolutions_are_rounded_so_within_the_run(door: Door, folder: Path, patch: Any) -> None:
    eye = Eye(lambda: torch.backends.cudnn.allow_tf32)
    assert seen(door, folder, eye=eye, max_steps=1, convolution_precision="highest").found == {False}
    assert torch.backends.cudnn.allow_tf32


@effect_of("loss_reduction")
def sums_are_added_where_means_are_averaged(door: Door, folder: Path, patch: Any) -> None:
    run = partial(seen, door, folder, max_steps=1, gradient_accumulation_steps=2)
    assert run(loss_reduction="sum").norms[0] == pytest.approx(2 * run().norms[0], rel=1e-5)


@effect_of("device")
def the_run_is_there(door: Door, folder: Path, patch: Any) -> None:
    assert door.train(folder, Eye(), max_steps=1, device="cpu").device == torch.device("cpu")
    if door.name != "recommender":
        with pytest.raises(ConfigError, match="device='meta' has no numbers"):
            door.train(folder, Eye(), max_steps=1, device="meta")


@effect_of("checkpoints")
def so_many_checkpoints_are_kept(door: Door, folder: Path, patch: Any) -> None:
    def kept(**policy: Any) -> list[int]:
        place = folder / str(policy)
        asked = policy if door.name == "recommender" else Policy(**policy)
        seen(door, folder, run_dir=place, max_steps=5, save_every="1 step", checkpoints=asked)
        return checkpoints(place)

    assert kept(keep_last=1) == [5]
    assert kept(keep_last=1, keep_every=2) == [2, 4, 5]


@effect_of("on_nonfinite")
def a_bad_update_ends_the_run_or_is_left_out(door: Door, folder: Path, patch: Any) -> None:
    with pytest.raises(NonFiniteError):
        seen(door, folder, eye=Eye(poisoned=2), log_every=1)
    core = door.train(folder, Eye(poisoned=2), log_every=1, on_nonfinite="skip")
    assert core.progress.step == 2 * door.steps
    assert all(torch.isfinite(one).all() for one in core.model.parameters())


@effect_of("max_rollbacks")
def it_goes_back_no_more_often(door: Door, folder: Path, patch: Any) -> None:
    asked = {"on_nonfinite": "rollback", "save_every": "1 step", "log_every": 1}
    with pytest.raises(NonFiniteError, match="after 0 rollbacks"):
        seen(door, folder, eye=Eye(poisoned=2), run_dir=folder / "none", max_rollbacks=0, **asked)
    core = door.train(folder, Eye(poisoned=2), run_dir=folder / "one", max_rollbacks=1, **asked)
    assert core.progress.step == 2 * door.steps


@effect_of("deterministic")
def torch_is_made_to_give_the_same_bits(door: Door, folder: Path, patch: Any) -> None:
    eye = Eye(torch.are_deterministic_algorithms_enabled)
    assert seen(door, folder, eye=eye, max_steps=1, deterministic=True).found == {True}
    assert not torch.are_deterministic_algorithms_enabled()


@effect_of("microbatch")
def a_batch_without_room_is_cut(door: Door, folder: Path, patch: Any) -> None:
    half = door.rows // 2
    cut = seen(door, folder, eye=Eye(room=half), max_steps=2, microbatch="auto")
    whole = seen(door, folder, max_steps=2)
    assert [one.rows for one in cut.trained] == [door.rows, half, half, half, half]
    assert cut.norms == pytest.approx(whole.norms, rel=1e-4)
    with pytest.raises(torch.OutOfMemoryError):
        seen(door, folder, eye=Eye(room=half), max_steps=2)


class Counts(Execution):
    """Counts the windows that are drawn."""

    drawn = 0

    def draw(self, phase: Any) -> list[Any]:
        type(self).drawn += 1
        return super().draw(phase)


@effect_of("execution")
def steps_are_carried_out_by_it(door: Door, folder: Path, patch: Any) -> None:
    with pytest.raises(ConfigError, match="execution='graph' records the step on a CUDA device"):
        seen(door, folder, max_steps=1, execution="graph")
    patch.setattr(Counts, "drawn", 0)
    seen(door, folder, max_steps=2, execution=Counts)
    assert Counts.drawn == 2


@effect_of("compile")
def the_loss_is_compiled_in_the_mode(door: Door, folder: Path, patch: Any) -> None:
    asked: list[Any] = []

    def compile(function: Any, **arguments: Any) -> Any:
        asked.append(arguments["fullgraph"])
        return function

    patch.setattr(torch, "compile", compile)
    seen(door, folder, max_steps=1)
    assert asked == []
    seen(door, folder, max_steps=1, compile=True)
    assert asked == [False]


@effect_of("activation_checkpointing")
def what_is_named_is_computed_again(door: Door, folder: Path, patch: Any) -> None:
    assert seen(door, folder, max_steps=1).passes == [1]
    assert seen(door, folder, max_steps=1, activation_checkpointing=[door.module]).passes == [2]


@effect_of("offload_optimizer")
def the_state_is_kept_on_the_host(door: Door, folder: Path, patch: Any) -> None:
    core = door.train(folder, Eye(), max_steps=2, offload_optimizer=True)
    assert len(core.this_run.updater.offloaded) == len(core.optimizers())
    assert core.progress.step == 2


@effect_of("timeout")
def processes_join_with_it(door: Door, folder: Path, patch: Any) -> None:
    patch.setattr(processes, "_joined_with", [30.0])
    with pytest.raises(ConfigError, match="timeout=20, but the processes have joined with 30 seconds"):
        seen(door, folder, max_steps=1, timeout=20.0)
    assert seen(door, folder, max_steps=1, timeout=30.0).passes == [1]


@effect_of("parallel")
def the_plan_must_fit_the_processes(door: Door, folder: Path, patch: Any) -> None:
    with pytest.raises(ConfigError, match="is 2 processes, but 1 were started"):
        seen(door, folder, max_steps=1, parallel={"data": 2} if door.name == "recommender" else Plan(data=2))


# What `train` is asked for --------------------------------------------------------------------------------------


@effect_of("num_epochs")
def so_many_passes_are_made(door: Door, folder: Path, patch: Any) -> None:
    assert [len(seen(door, folder, num_epochs=count).passes) for count in (1, 3)] == [door.steps, 3 * door.steps]


@effect_of("max_steps")
def no_more_updates_are_made(door: Door, folder: Path, patch: Any) -> None:
    assert len(seen(door, folder, max_steps=door.steps + 1).passes) == door.steps + 1


@effect_of("per_device_batch_size")
def micro_batches_have_so_many_rows(door: Door, folder: Path, patch: Any) -> None:
    half = door.rows // 2
    assert [one.rows for one in seen(door, folder, max_steps=2, per_device_batch_size=half).trained] == [half] * 2


@effect_of("gradient_accumulation_steps")
def an_update_has_so_many_passes(door: Door, folder: Path, patch: Any) -> None:
    eye = seen(door, folder, num_epochs=1, gradient_accumulation_steps=2)
    rest = [1] if door.steps % 2 else []
    assert eye.passes == [2] * (door.steps // 2) + rest


@effect_of("gradient_clip_value")
def elements_of_the_gradient_are_bounded(door: Door, folder: Path, patch: Any) -> None:
    free = seen(door, folder, max_steps=2)
    bound = free.largest[0] / 2
    assert seen(door, folder, max_steps=1, gradient_clip_value=bound).largest == pytest.approx([bound])


@effect_of("clip_norm")
def the_norm_of_the_gradient_is_bounded(door: Door, folder: Path, patch: Any) -> None:
    free = seen(door, folder, max_steps=2)
    bound = free.norms[0] / 2
    (norm,) = seen(door, folder, max_steps=1, clip_norm=bound).norms
    # What torch adds to the norm before it divides by it, one part in a million, shows in the smallest of gradients.
    assert bound * 0.98 < norm <= bound * (1 + 1e-5)


@effect_of("scheduler_interval")
def the_rates_move_by_it(door: Door, folder: Path, patch: Any) -> None:
    halved = partial(StepLR, step_size=1, gamma=0.5)
    by_step = seen(door, folder, schedule=halved)
    assert by_step.rates == pytest.approx([0.1 * 0.5**place for place in range(2 * door.steps)])
    by_epoch = seen(door, folder, schedule=halved, scheduler_interval="epoch")
    assert by_epoch.rates == pytest.approx([0.1] * door.steps + [0.05] * door.steps)


class Follows:
    """A schedule that takes note of what drives it."""

    def __init__(self, optimizer: Any) -> None:
        self.told: list[float] = []

    def step(self, value: float) -> None:
        self.told.append(float(value))

    def state_dict(self) -> dict[str, Any]:
        return {"told": self.told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.told = list(state["told"])


@effect_of("scheduler_metric")
def a_metric_drives_the_schedule(door: Door, folder: Path, patch: Any) -> None:
    core = door.train(folder, Eye(), schedule=Follows, scheduler_metric=door.metric, evaluates=True)
    assert core.scheduler.told == core.run_history.get_metric_values(door.metric)
    assert len(core.scheduler.told) == 2


@effect_of("eval_every")
def so_many_evaluations_are_made(door: Door, folder: Path, patch: Any) -> None:
    def evaluated(every: str) -> int:
        core = door.train(folder, Eye(), evaluates=True, num_epochs=4, eval_every=every)
        return len(core.run_history.get_metric_values(door.metric))

    assert [evaluated(every) for every in ("1 epoch", "2 epochs")] == [4, 2]


@effect_of("log_every")
def numbers_are_written_so_often(door: Door, folder: Path, patch: Any) -> None:
    def growth(every: int) -> int:
        lines = Lines(folder / str(every) / "metrics.jsonl")
        seen(door, folder, lines, run_dir=folder / str(every), log_every=every)
        return len(lines.found)

    assert growth(1) > growth(100)


class Lines(TrainerCallback):
    """Takes note of how many lines a file has when updates end."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: set[int] = set()

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.found.add(len(self.file.read_text().splitlines()) if self.file.exists() else 0)


@effect_of("save_every")
def the_run_is_saved_so_often(door: Door, folder: Path, patch: Any) -> None:
    asked = {"keep_last": None} if door.name == "recommender" else Policy(keep_last=None)
    seen(door, folder, run_dir=folder / "run", max_steps=4, save_every="2 steps", checkpoints=asked)
    assert [step for step in checkpoints(folder / "run") if step] == [2, 4]


@effect_of("resume_from")
def a_run_goes_on_from_what_another_left(door: Door, folder: Path, patch: Any) -> None:
    core = door.train(folder, Eye(), num_epochs=1, run_dir=folder / "run")
    state, updates = door.saved_state(core, folder / "state"), Updates()
    seen(door, folder, updates, num_epochs=2, resume_from=state)
    assert (updates.began, updates.made) == (door.steps, door.steps)


@effect_of("resume")
def a_run_goes_on_where_it_was(door: Door, folder: Path, patch: Any) -> None:
    updates = Updates()
    first = seen(door, folder, run_dir=folder / "run", max_steps=2, resume="auto")
    rest = seen(door, folder, updates, run_dir=folder / "run", max_steps=5, resume="auto")
    assert (updates.began, updates.made) == (2, 3)
    whole = seen(door, folder, max_steps=5)
    assert first.norms + rest.norms == whole.norms


@effect_of("extend")
def a_schedule_of_a_longer_run_is_held(door: Door, folder: Path, patch: Any) -> None:
    length = P.NUM_EPOCHS * P.NUM_UPDATE_STEPS_PER_EPOCH
    fall = partial(LinearLR, start_factor=1.0, end_factor=0.5, total_iters=length)
    run = partial(seen, door, folder, run_dir=folder / "run", schedule=fall, resume="auto")
    assert run(num_epochs=1).rates[0] == pytest.approx(0.1)
    with pytest.raises(CheckpointError, match="pass extend='stretch'"):
        run(num_epochs=2)
    assert run(num_epochs=2, extend="hold").rates == pytest.approx([0.05] * door.steps)


@effect_of("lr_scaling")
def the_rates_follow_the_batch(door: Door, folder: Path, patch: Any) -> None:
    asked = given(door, "lr_scaling", LRScaling("linear", reference_batch_size=door.rows // 2))
    assert seen(door, folder, max_steps=1, lr_scaling=asked).rates == pytest.approx([0.2])


CASES = [(door, option) for door in DOORS for option in OPTIONS if not isinstance(door.names[option], Refused)]


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
@pytest.mark.parametrize(("door", "option"), CASES, ids=[f"{door}-{option}" for door, option in CASES])
def test_an_option_has_its_effect_behind_every_door(
    door: Door, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EFFECTS[option](door, tmp_path, monkeypatch)


# What is missing ------------------------------------------------------------------------------------------------


def test_an_effect_is_shown_for_every_option() -> None:
    assert sorted(EFFECTS) == sorted(OPTIONS)


def test_every_door_has_a_word_on_every_option() -> None:
    for door in DOORS:
        check_names(door.name, door.names)
    check_names("engine", of_engine.NAMES)
    assert {name: name for name in OPTIONS} == CORE_NAMES


def test_every_key_of_an_option_has_an_effect_in_the_tests_of_the_engine() -> None:
    keys = {name for name in of_engine.NAMES.values() if isinstance(name, str)}
    assert keys - set(ENGINE_EFFECTS) == {"optim.params.clip_grad_max_norm"}
