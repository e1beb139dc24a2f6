"""A search that is killed anywhere ends in the same architecture weights, bit for bit."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.forking.starting import run
from tests.interrupting import CutAt, CutError, Updates, assert_same_bits, metric_lines, starts_of
from tests.nas.small import data, make, small
from treadle import nas
from treadle.errors import CheckpointError

EPOCHS = 3
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "darts": (nas.DartsTrainer, {}),
    "darts of second order": (nas.DartsTrainer, {"unrolled": True}),
    "darts with a warm-up": (nas.DartsTrainer, {"warmup_epochs": 1}),
    "darts with windows": (nas.DartsTrainer, {"gradient_accumulation_steps": 2, "unrolled": True}),
    "darts with less to validate on": (nas.DartsTrainer, {"dataset": data(24), "validation_dataset": data(8, 1)}),
    "darts with less to train on": (
        nas.DartsTrainer,
        {"dataset": data(16), "validation_dataset": data(40, 1), "unrolled": True},
    ),
    "gumbel": (nas.GumbelDartsTrainer, {}),
    "gumbel, drawn hard": (nas.GumbelDartsTrainer, {"hard": True}),
    "proxyless": (nas.ProxylessTrainer, {}),
    "enas": (nas.EnasTrainer, {}),
    "enas with fixed updates": (nas.EnasTrainer, {"controller_steps": 4}),
    "spos": (nas.SposTrainer, {}),
    "without a seed": (nas.GumbelDartsTrainer, {"seed": None}),
}


def schedule(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)


def searched(run_dir: Path, way: str, *callbacks: Any, seed: int = 5) -> Any:
    kind, options = WAYS[way]
    torch.manual_seed(seed)
    arguments = {"num_epochs": EPOCHS, "scheduler": schedule, **options}
    trainer = make(kind, small(), run_dir=run_dir, callbacks=callbacks, **arguments)
    trainer.fit(resume="auto", save_every=1, log_every=2)
    return trainer


def everything(trainer: Any) -> dict[str, Any]:
    optimizers = {name: one.state_dict() for name, one in trainer.core.optimizers().items()}
    history = trainer.core.run_history.state_dict()
    history["storage"].pop("time", None)
    extra = {"evolution": trainer.core.evolution.state_dict()} if isinstance(trainer, nas.SposTrainer) else {}
    return {"supernet": trainer.supernet.state_dict(), "optimizers": optimizers, "history": history, **extra}


@pytest.mark.parametrize("way", WAYS)
def test_darts_9_a_search_killed_after_any_step_ends_as_if_nothing_had_been(tmp_path: Path, way: str) -> None:
    whole = searched(tmp_path / "whole", way)
    steps = whole.core.progress.step
    for step in range(1, steps):
        updates = CutAt(step)
        with pytest.raises(CutError):
            # What would be drawn after the first start is another: only the checkpoint knows better.
            searched(tmp_path / "cut", way, updates, seed=5 if step == 1 else step)
        # The step that the search died of was not saved: it goes on from the one before.
        assert (updates.began, updates.made) == (max(step - 2, 0), min(step, 2))
    updates = Updates()
    cut = searched(tmp_path / "cut", way, updates, seed=99)
    assert (updates.began, updates.made) == (steps - 2, 2)
    assert cut.core.progress == whole.core.progress
    assert_same_bits(everything(cut), everything(whole))
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")
    assert cut.export(top_k=3) == whole.export(top_k=3)


@pytest.mark.slow
def test_darts_9_a_search_whose_process_is_killed_in_the_middle_of_a_write_ends_in_the_same_bits(
    tmp_path: Path,
) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = run("-m", "tests.nas.programs.killed", str(tmp_path), cwd=Path(__file__).parents[2], env=environment)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    killed = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("killed ")]
    assert [way for way, _ in killed] == ["darts", "gumbel", "enas", "spos"]
    for way, deaths in killed:
        assert int(deaths) >= 2, way
        # Killed anywhere, it goes on from no earlier step than before, and at last from one that was saved.
        starts = starts_of(tmp_path / f"{way} cut")
        assert starts == sorted(starts), way
        assert starts[-1] > 0, way
        whole, cut = (load_file(tmp_path / f"{way}.{name}.safetensors") for name in ("whole", "cut"))
        assert_same_bits(cut, whole)
        assert (tmp_path / f"{way}.cut.txt").read_text() == (tmp_path / f"{way}.whole.txt").read_text()


def test_a_finished_search_is_exported_again_from_its_folder(tmp_path: Path) -> None:
    first = searched(tmp_path, "darts")
    updates = Updates()
    again = searched(tmp_path, "darts", updates)
    assert (updates.began, updates.made) == (first.core.progress.step, 0)
    assert again.export(top_k=3) == first.export(top_k=3)
    assert again.probabilities() == first.probabilities()


def test_the_folder_of_another_space_is_refused(tmp_path: Path) -> None:
    searched(tmp_path, "darts")

    class Renamed(type(small())):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.skip.label = "jump"

    Renamed.__name__ = "Small"
    other = make(nas.DartsTrainer, small(Renamed), run_dir=tmp_path, num_epochs=EPOCHS, scheduler=schedule)
    with pytest.raises(CheckpointError, match=r"is of another space: 'skip' in the checkpoint where .* 'jump'"):
        other.fit(resume="auto")


def test_a_longer_search_goes_on_where_the_shorter_one_ended(tmp_path: Path) -> None:
    for epochs in (1, 3):
        updates = Updates()
        trainer = make(nas.DartsTrainer, small(), run_dir=tmp_path / "long", num_epochs=epochs, callbacks=(updates,))
        trainer.fit(resume="auto")
    whole = make(nas.DartsTrainer, small(), run_dir=tmp_path / "whole", num_epochs=3)
    whole.fit()
    # Three epochs of three batches, each with an update of the weights and one of the architecture.
    assert (updates.began, updates.made) == (6, 12)
    assert torch.equal(trainer.supernet.weights.alpha, whole.supernet.weights.alpha)


make_in_folder = partial(make, nas.DartsTrainer)


def test_a_folder_that_holds_a_search_is_not_touched_without_being_asked(tmp_path: Path) -> None:
    make_in_folder(run_dir=tmp_path, num_epochs=1).fit()
    with pytest.raises(CheckpointError, match="already holds a run"):
        make_in_folder(run_dir=tmp_path, num_epochs=1).fit()
