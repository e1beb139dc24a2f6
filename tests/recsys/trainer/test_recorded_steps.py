"""Steps of recommenders are recorded, on a recorder for the CPU: batches are cut out inside of the recording."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.execution.recording import TapeRecorder, noted_steps
from tests.interrupting import assert_same_bits
from tests.recsys.trainer.runs import assert_same_training, fit_through, interactions, make
from treadle.execution import GraphExecution
from treadle.execution.cuda_graph.inputs import CopiedInputs, GatheredInputs
from treadle.recsys.trainers.loop.core import RecsysCore

SHUFFLED: dict[str, dict[str, Any]] = {
    "BPR": {},
    "LightGCN": {},
    "NeuMF": {},
    "BPR with two negatives": {"train_neg_sample_args": {"distribution": "popularity", "sample_num": 2}},
    "BPR in order": {"shuffle": False},
}

VIEWS = ("view", "expand", "detach", "squeeze", "select.int", "slice.Tensor", "split", "profiler", "empty")
"""Operations that calculate nothing."""


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> TapeRecorder:
    return record_all(monkeypatch)


def record_all(monkeypatch: pytest.MonkeyPatch) -> TapeRecorder:
    """Have all runs recorded from now on, and return by what."""
    made = TapeRecorder()
    monkeypatch.setattr(RecsysCore, "create_execution", lambda core: GraphExecution(core, made, required=True))
    return made


def learnt(run: Any) -> dict[str, Any]:
    optimizer = run.trainer.optimizer.state_dict()["state"]
    return {"model": run.model.state_dict(), "optimizer": optimizer, "losses": run.trainer.train_loss_dict}


@pytest.mark.parametrize("case", SHUFFLED)
def test_replayed_steps_of_a_recommender_give_the_bits_of_ordinary_ones(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = case.split()[0]
    eager = make(tmp_path / "eager", model, **SHUFFLED[case])
    eager.fit()
    made, steps = record_all(monkeypatch), noted_steps(monkeypatch)
    recorded = make(tmp_path / "recorded", model, **SHUFFLED[case])
    recorded.fit()
    assert_same_bits(learnt(eager), learnt(recorded))
    assert recorded.trainer._core.this_run.execution.reason is None
    assert steps
    assert all(isinstance(step.inputs, GatheredInputs) for step in steps)
    assert made.replays > 2 * made.captures


def test_a_recorded_run_that_is_cut_inside_an_epoch_ends_in_the_same_bits(
    tmp_path: Path, recorder: TapeRecorder
) -> None:
    def run(name: str) -> Any:
        return lambda *callbacks: make(
            tmp_path, "BPR", *callbacks, run_dir=str(tmp_path / name), save_every="1 steps", resume=True
        )

    whole = run("whole")()
    whole.fit()
    assert recorder.replays
    assert_same_training(whole.trainer, fit_through([2, 7], run("cut")).trainer)


def test_batches_that_a_step_cannot_cut_out_are_copied_to_it(
    tmp_path: Path, recorder: TapeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = noted_steps(monkeypatch)
    run = make(tmp_path, "SASRec", hidden_size=8, inner_size=8, n_heads=1, n_layers=1, epochs=4)
    run.fit()
    assert steps
    assert all(isinstance(step.inputs, CopiedInputs) for step in steps)


@pytest.mark.parametrize(("model", "most"), [("BPR", 35), ("LightGCN", 57)])
def test_a_recorded_step_has_few_operations(model: str, most: int, tmp_path: Path, recorder: TapeRecorder) -> None:
    """Each operation is a kernel on a GPU, and a step of such a model is little else than their number.

    Going on to the next batch is one of them; nothing is left for the host to launch beside the recording.
    """
    make(tmp_path, model, table={name: column for name, column in interactions().items() if "_id" in name}).fit()
    counts = [sum(not any(view in name for view in VIEWS) for name in names) for names in recorder.operations]
    assert counts
    assert max(counts) <= most


def test_the_next_order_is_drawn_before_an_epoch_ends_on_a_device(tmp_path: Path, recorder: TapeRecorder) -> None:
    run = make(tmp_path, "BPR", epochs=1)
    run.fit()
    (stream,) = run.trainer._core.streams.values()
    loader = run.train
    assert loader._order[0] == 0
    stream.begin(3)
    stream.device = torch.device("meta")
    while stream.has_next():
        stream.places(1)
    assert loader._order[0] == 4
    assert torch.equal(loader.epoch_order(4), loader.epoch_order(4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_cuda_graphs_of_a_recommender_learn_what_ordinary_steps_do(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = noted_steps(monkeypatch)
    runs = []
    for execution in ("eager", "graph"):
        run = make(tmp_path / execution, model, use_gpu=True, execution=execution, deterministic=True)
        run.fit()
        runs.append(run)
    assert steps
    assert all(isinstance(step.inputs, GatheredInputs) for step in steps)
    for mine, theirs in zip(*(run.model.parameters() for run in runs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
