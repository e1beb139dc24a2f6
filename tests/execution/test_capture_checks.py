"""Steps that are not tried at all, because it is known that they cannot be recorded."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.execution.taped import Recorded, train
from treadle.errors import CaptureError
from treadle.execution.cuda_graph.capture_checks import refuse_optimizer, refuse_run, refuse_window
from treadle.phase import Phase
from treadle.spec import RunSpec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"processes": SimpleNamespace(distributed=True)}, "with several processes gradients are exchanged inside"),
        (
            {"spec": RunSpec(microbatch="auto")},
            "microbatch='auto' changes the shape of a step; find it with execution='eager' first",
        ),
        (
            {"spec": RunSpec(offload_optimizer=True)},
            "offload_optimizer=True brings state from the host in every step; leave it out",
        ),
    ],
    ids=["processes", "micro-batches", "offload"],
)
def test_settings_that_rule_a_recording_out_are_named(change: dict[str, Any], message: str) -> None:
    usual = {
        "callback_handler": SimpleNamespace(active=[]),
        "processes": SimpleNamespace(distributed=False),
        "spec": RunSpec(),
    }
    refuse_run(SimpleNamespace(**usual))  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match=message):
        refuse_run(SimpleNamespace(**{**usual, **change}))  # type: ignore[arg-type]


def test_micro_batches_of_unknown_size_are_refused_in_a_run() -> None:
    with pytest.raises(CaptureError, match="execution='graph' cannot record this step: microbatch='auto' changes the"):
        train(Recorded, trainer={"microbatch": "auto"})


def test_numbers_words_and_nothing_may_stand_beside_the_tensors_of_a_batch() -> None:
    phase: Any = SimpleNamespace(draws=True)
    refuse_window(phase, [(torch.ones(1), None, 3, 0.5, True, "words")])


def test_a_batch_of_something_else_than_tensors_is_refused_by_its_type() -> None:
    @dataclass
    class Sample:
        """A batch without a hash, as data classes are."""

        number: int = 0

    class Odd(Recorded):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            return {"loss": self.model(torch.ones(2, 4)).mean(), "batch_size": 2}

    loader = torch.utils.data.DataLoader([Sample(), Sample()], batch_size=None)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="a batch holds a Sample; give tensors in tuples, lists and dicts"):
        train(Odd, dataset=loader)


def test_a_phase_that_draws_its_data_itself_is_refused() -> None:
    class Drawing(Recorded):
        def phases(self, epoch: int) -> Any:
            yield Phase("own", self.streams["train"], self.own_loss, self.optimizer, draws=False, steps=1)

        def own_loss(self, batch: Any) -> dict[str, Any]:
            raise AssertionError("it is refused before")

    with pytest.raises(CaptureError, match="a step of your own draws its data itself; leave that to the trainer"):
        train(Drawing)


def test_an_optimizer_that_counts_in_numbers_of_pythons_is_refused() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = optim.SGD([weight], lr=0.1)
    optimizer.state[weight] = {"step": 3}
    with pytest.raises(
        CaptureError, match="SGD keeps 'step' on the host, where no replay changes it; use an optimizer"
    ):
        refuse_optimizer(optimizer, moves=False)


def test_muon_is_recorded_unless_its_rate_moves() -> None:
    optimizer = optim.Muon([nn.Parameter(torch.ones(2, 2))])
    refuse_optimizer(optimizer, moves=False)
    with pytest.raises(CaptureError, match="Muon reads its learning rate on the host, and a schedule by steps"):
        refuse_optimizer(optimizer, moves=True)


def test_a_step_that_reaches_other_weights_than_the_steps_before_is_refused() -> None:
    class Reaching(Recorded):
        """Uses another layer while it is recorded, as a program might that draws its way through a model."""

        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            if torch._C._len_torch_dispatch_stack():  # only the recorder of the tests is there
                output["loss"] = output["loss"] + self.model.get_submodule("5")(torch.ones(1, 2)).sum()
            return output

    class Skipping(Reaching):
        def __init__(self, network: Any, loss: Any, optimizer: Any, **kwargs: Any) -> None:
            network.append(_Unused(2, 1))
            optimizer.add_param_group({"params": list(network[5].parameters())})
            super().__init__(network, loss, optimizer, **kwargs)

    with pytest.raises(CaptureError, match="the optimizer made state for weights that had no gradient in the steps"):
        train(Skipping)


class _Unused(nn.Linear):
    """Lets through what comes, but for one row of ones."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) if inputs.shape == (1, 2) else inputs
