"""DARTS of first order; the numbers are those of the behaviours of the research page."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.nas.small import Small, accuracy, data, make, sgd, small
from treadle import nas
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError


def by_hand(steps: int, *, grad_clip: float | None = 5.0) -> tuple[Tensor, nn.Module]:
    """Do the same in a plain loop on a space without nesting, and return the weights of candidates and the model."""
    trainer = make(nas.DartsTrainer, small(Flat))
    alpha = nn.Parameter(trainer.supernet.weights.alpha.detach().clone())
    model = small(Flat)
    optimizer, architect = sgd(model.parameters()), torch.optim.Adam([alpha], 0.05, (0.5, 0.999), weight_decay=1e-3)
    train, validation = batches_of(trainer)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        weights = alpha.softmax(-1)
        mixed = sum(weights[0, place] * candidate(batch[0]) for place, candidate in enumerate(model.layer))
        return F.cross_entropy(model.head(mixed), batch[1])

    for step in range(steps):
        (alpha.grad,) = torch.autograd.grad(loss_of(validation[step]), [alpha])
        architect.step()
        own = list(model.parameters())
        for weight, gradient in zip(own, torch.autograd.grad(loss_of(train[step]), own), strict=True):
            weight.grad = gradient
        if grad_clip is not None:
            nn.utils.clip_grad_norm_(own, grad_clip)
        optimizer.step()
    return alpha.detach(), model


class Flat(nn.Module):
    """One choice between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nas.LayerChoice([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())], label="layer")
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.layer(inputs))
        return output


class Seen(TrainerCallback):
    """Keeps the batches of every update."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def on_train_step_start(self, trainer: Any, batch: Any, **kwargs: Any) -> None:
        self.batches.append(batch)


def batches_of(trainer: Any) -> tuple[list[Any], list[Any]]:
    """Return what a trainer draws: the batches of training and of validation."""
    seen = Seen()
    other = make(type(trainer), small(Flat), callbacks=(seen,))
    other.fit()
    return seen.batches[1::2], seen.batches[::2]


def test_darts_1_every_choice_is_relaxed_nested_ones_too_and_the_tree_of_modules_stays() -> None:
    model = small()
    before = [(name, type(module)) for name, module in model.named_modules()]
    weights = [name for name, _ in model.named_parameters()]
    trainer = make(nas.DartsTrainer, model)
    assert [(name, type(module)) for name, module in model.named_modules()] == before
    assert [name for name, _ in model.named_parameters()] == weights
    assert list(trainer.probabilities()) == ["layer", "inner", "skip"]
    assert all(choice.chooser is trainer.supernet.chooser for _, choice in trainer.nas_modules)
    inputs = torch.randn(5, 4)
    mixed = trainer.supernet.eval()(inputs)
    p = {label: list(row.values()) for label, row in trainer.probabilities().items()}
    hidden = model.layer["deep"][:2](inputs)
    deep = p["inner"][0] * hidden.relu() + p["inner"][1] * hidden.tanh()
    layer = p["layer"][0] * deep + p["layer"][1] * model.layer["flat"](inputs) + p["layer"][2] * inputs
    torch.testing.assert_close(mixed, model.head(p["skip"][0] * layer + p["skip"][1] * inputs))


def test_darts_2_each_optimizer_holds_its_own_and_nothing_of_the_others() -> None:
    model = small()
    trainer = make(nas.DartsTrainer, model)
    held = {
        name: {id(one) for group in own.param_groups for one in group["params"]} for name, own in optimizers(trainer)
    }
    assert held["weights"] == {id(parameter) for parameter in model.parameters()}
    assert held["architecture"] == {id(trainer.supernet.weights.alpha)}


def optimizers(trainer: Any) -> Any:
    return trainer.core.optimizers().items()


def test_darts_2_an_optimizer_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="the optimizer holds weights that are not the model's"):
        make(nas.DartsTrainer, optimizer=sgd(nn.Linear(2, 2).parameters()))
    with pytest.raises(ConfigError, match="optimizer is a str; pass an optimizer"):
        make(nas.DartsTrainer, optimizer=lambda parameters: "sgd")
    with pytest.raises(ConfigError, match="arc_optimizer returned a str"):
        make(nas.DartsTrainer, arc_optimizer=lambda parameters: "adam")


def test_darts_3_a_search_is_the_plain_loop_to_the_last_bit_architecture_first() -> None:
    trainer = make(nas.DartsTrainer, small(Flat))
    trainer.fit()
    alpha, model = by_hand(6)
    torch.testing.assert_close(trainer.supernet.weights.alpha, alpha, rtol=0, atol=1e-6)
    for own, other in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-6)


def test_darts_3_the_architecture_learns_from_validation_data_alone_and_the_weights_from_training_data_alone() -> None:
    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.states: list[Any] = []

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            alpha = trainer.model.weights.alpha.detach().clone()
            weights = nn.utils.parameters_to_vector(trainer.model.space.parameters()).detach().clone()
            self.states.append((alpha, weights))

    watch = Watch()
    make(nas.DartsTrainer, callbacks=(watch,), num_epochs=1).fit()
    alphas, weights = zip(*watch.states, strict=True)
    moved = [not torch.equal(one, other) for one, other in pairwise(alphas)]
    trained = [not torch.equal(one, other) for one, other in pairwise(weights)]
    # After the first update, of the architecture, come weights, architecture, weights and so on.
    assert moved == [False, True, False, True, False]
    assert trained == [True, False, True, False, True]


def test_darts_5_the_gradient_of_the_weights_is_clipped_and_that_of_the_architecture_is_not() -> None:
    class Norms(TrainerCallback):
        def __init__(self) -> None:
            self.found: list[float | None] = []

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            self.found.append(None if trainer.gradient_norm is None else float(trainer.gradient_norm))

    norms = Norms()
    # Plain gradient descent with a rate of one moves the weights by the gradient that was used.
    trainer = make(
        nas.DartsTrainer,
        callbacks=(norms,),
        grad_clip=1.0,
        loss=lambda outputs, targets: 100 * F.cross_entropy(outputs, targets),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    )
    before = nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()
    trainer.fit(max_steps=2)
    after = nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
    assert norms.found[0] is None
    assert norms.found[1] is not None
    assert norms.found[1] > 1
    assert float((after - before).norm()) == pytest.approx(1.0, rel=1e-4)


def test_darts_6_in_a_warm_up_the_architecture_stays_to_the_last_bit() -> None:
    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.alphas: list[Tensor] = []

        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            self.alphas.append(trainer.model.weights.alpha.detach().clone())

    watch = Watch()
    trainer = make(nas.DartsTrainer, callbacks=(watch,), warmup_epochs=2, num_epochs=3)
    start = trainer.supernet.weights.alpha.detach().clone()
    result = trainer.fit()
    assert [torch.equal(alpha, start) for alpha in watch.alphas] == [True, True, False]
    assert result.steps == 3 + 3 + 6


@pytest.mark.parametrize(("validated", "shorter"), [(8, "validation"), (40, "training")])
def test_darts_7_the_shorter_data_begins_again_and_that_is_said(
    validated: int, shorter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    trainer = make(
        nas.DartsTrainer, dataset=data(24), validation_dataset=data(validated, 1), callbacks=(seen,), num_epochs=1
    )
    result = trainer.fit()
    longest = max(3, validated // 8)
    assert result.steps == 2 * longest
    text = f"an epoch has 3 batches to train on and {validated // 8} to validate on: the {shorter} data begins again"
    assert text in capsys.readouterr().out
    # Every sample of the longer data was used once, those of the shorter one as often as it takes.
    longer = [batch[0] for batch in seen.batches[(1 if shorter == "validation" else 0) :: 2]]
    assert len(torch.cat(longer).unique(dim=0)) == 8 * longest
    assert trainer.core.run_config.max_num_train_steps == result.steps


def test_darts_7_data_of_equal_length_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    make(nas.DartsTrainer, num_epochs=1).fit()
    assert "begins again" not in capsys.readouterr().out


def test_data_is_split_by_the_seed_and_each_sample_goes_to_one_side() -> None:
    seen = Seen()
    make(nas.DartsTrainer, callbacks=(seen,), num_epochs=1, split=0.75, dataset=data(32)).fit()
    validation, train = torch.cat([b[0] for b in seen.batches[::2]]), torch.cat([b[0] for b in seen.batches[1::2]])
    assert (len(train.unique(dim=0)), len(validation.unique(dim=0))) == (24, 8)
    assert len(torch.cat([train, validation]).unique(dim=0)) == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": None}, "has nothing to train on; pass dataset="),
        ({"dataset": [torch.zeros(1)], "split": 0.5}, r"split=0.5 leaves 0 of 1 samples"),
        ({"dataset": iter(())}, "cannot split a tuple_iterator; pass validation_dataset="),
        ({"precission": "bf16"}, "DartsTrainer takes no 'precission'; did you mean 'precision'"),
        ({"model": nn.Linear(2, 2)}, "the model has no choices; put a LayerChoice"),
        ({"unrolled": True, "precision": "bf16"}, "0.01 apart, which bf16 cannot tell; leave precision at 'fp32'"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(nas.DartsTrainer, **options)


def test_metrics_and_losses_of_both_phases_are_recorded_and_the_weights_after_each_epoch() -> None:
    trainer = make(nas.DartsTrainer)
    trainer.fit()
    storage = trainer.storage
    assert len(storage.series("architecture_loss").values) == 6
    assert len(storage.series("weights_loss").values) == 6
    assert all(0 <= value <= 1 for value in storage.series("validation_accuracy").values)
    last = storage.series("architecture/layer/flat").values[-1]
    assert last == pytest.approx(trainer.probabilities()["layer"]["flat"])


def test_torchmetrics_are_kept_over_the_validation_data_of_an_epoch() -> None:
    from torchmetrics.classification import MulticlassAccuracy

    trainer = make(nas.DartsTrainer, metrics={"accuracy": MulticlassAccuracy(3, average="micro")})
    result = trainer.fit()
    assert len(result.history["accuracy"]) == 2
    assert "validation_accuracy" not in trainer.storage.names()


def test_metrics_by_name_are_of_the_validation_data_and_those_of_training_are_refused() -> None:
    trainer = make(nas.DartsTrainer, metrics=["accuracy", "f1"])
    history = trainer.fit().history
    assert len(history["accuracy"]) == len(history["f1"]) == 2
    assert "train_accuracy" not in history
    with pytest.raises(ConfigError, match="DartsTrainer takes no 'train_metrics': weights and architecture take turns"):
        make(nas.DartsTrainer, metrics="accuracy", train_metrics=True)


def test_a_schedule_moves_with_the_updates_of_the_weights() -> None:
    from functools import partial

    from treadle import TrainerPlaceholderValues as P

    steps = P.NUM_EPOCHS * P.NUM_UPDATE_STEPS_PER_EPOCH
    schedule = partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.0, total_iters=steps)
    trainer = make(nas.DartsTrainer, scheduler=schedule)
    trainer.fit()
    assert trainer.core.scheduler.total_iters == 6
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_several_batches_make_an_update() -> None:
    trainer = make(nas.DartsTrainer, gradient_accumulation_steps=2)
    # Three batches are two windows, of both data.
    assert trainer.fit().steps == 2 * 2 * 2


def skipping(*arguments: Any) -> Any:
    model: Any = nn.Linear(1, 1)
    model.skip = nas.InputChoice(*arguments, label="skip")
    return model


def test_input_choice_6_the_heaviest_tensors_are_exported_in_order() -> None:
    model = skipping(4, 2)
    trainer = make(nas.DartsTrainer, model)
    with torch.no_grad():
        trainer.supernet.weights.alpha.copy_(torch.tensor([[0.1, 3.0, -1.0, 2.0]]))
    assert trainer.export() == {"skip": [1, 3]}


def test_input_choice_6_the_sum_of_two_is_as_large_as_two() -> None:
    model = skipping(3, 2)
    trainer = make(nas.DartsTrainer, model)
    trainer.supernet.chooser.weights = torch.tensor([[0.5, 0.5, 0.0]])
    one, two = torch.ones(2, 2), torch.full((2, 2), 3.0)
    assert torch.equal(model.skip(one, two, two), torch.full((2, 2), 4.0))


def test_an_input_choice_of_any_number_is_a_gate_for_each_tensor() -> None:
    model = skipping(3, None)
    trainer = make(nas.DartsTrainer, model)
    assert list(trainer.probabilities()) == ["skip/0", "skip/1", "skip/2"]
    with torch.no_grad():
        trainer.supernet.weights.alpha.copy_(torch.tensor([[0.0, 5.0], [5.0, 0.0], [0.0, 1.0]]))
    assert trainer.export() == {"skip": [0, 2]}
    found = trainer.export(top_k=8)
    assert [one.architecture["skip"] for one in found[:2]] == [[0, 2], [0]]
    assert len(found) == 8


@pytest.mark.parametrize("reduction", ["concat", "none"])
def test_input_choice_7_a_reduction_that_cannot_be_weighed_is_refused_when_the_trainer_is_built(reduction: str) -> None:
    model = skipping(3, 2, reduction)
    with pytest.raises(ConfigError, match=f"cannot weigh the candidates of 'skip' at skip: reduction='{reduction}'"):
        make(nas.DartsTrainer, model)


def test_input_choice_9_tensors_of_different_shapes_are_an_error_that_names_the_choice_and_the_shapes() -> None:
    model = skipping(2)
    make(nas.DartsTrainer, model)
    model.skip.chooser.weights = torch.tensor([[0.5, 0.5]])
    with pytest.raises(ConfigError, match=r"candidates of 'skip' have the shapes \(2, 3\), \(2, 4\)"):
        model.skip(torch.zeros(2, 3), torch.zeros(2, 4))


class Structured(nn.Module):
    """Candidates with several arguments that return tuples and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nas.LayerChoice({"one": Pair(1.0), "two": Pair(2.0)}, label="layer")
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        first, rest = self.layer(inputs, scale=2.0)
        output: Tensor = self.head(first + rest["sum"])
        return output


class Pair(nn.Module):
    """Returns a tuple with a dict in it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(factor))

    def forward(self, inputs: Tensor, *, scale: float) -> tuple[Tensor, dict[str, Any]]:
        return inputs * self.weight, {"sum": inputs * scale * self.weight, "name": "pair"}


@pytest.mark.parametrize(
    "kind", [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.ProxylessTrainer, nas.EnasTrainer, nas.SposTrainer]
)
def test_layer_choice_10_candidates_may_take_keywords_and_return_structures(kind: Any) -> None:
    trainer = make(kind, small(Structured), num_epochs=1)
    trainer.fit()
    assert trainer.export()["layer"] in ("one", "two")


def test_layer_choice_10_the_weighted_sum_goes_through_structures_and_refuses_what_cannot_be_added() -> None:
    model = small(Structured)
    make(nas.DartsTrainer, model)
    model.layer.chooser.weights = torch.tensor([[0.25, 0.75]])
    first, rest = model.layer(torch.ones(2, 4), scale=2.0)
    assert torch.equal(first, torch.full((2, 4), 1.75))
    assert torch.equal(rest["sum"], torch.full((2, 4), 3.5))
    assert rest["name"] == "pair"
    model.layer[1] = nn.Identity()
    model.layer[1].forward = lambda inputs, scale: (inputs, {"sum": inputs, "name": "other"})  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="candidates of 'layer' return 'pair' and others in the same place"):
        model.layer(torch.ones(2, 4), scale=2.0)
    model.layer[1].forward = lambda inputs, scale: inputs  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="candidates of 'layer' return different structures"):
        model.layer(torch.ones(2, 4), scale=2.0)


def test_a_base_one_shot_trainer_needs_no_call_of_its_constructor() -> None:
    class Mine(nas.BaseOneShotTrainer):
        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def fit(self) -> None:
            pass

        def export(self) -> dict[str, int]:
            return {"op": 1}

    assert Mine(Small()).export() == {"op": 1}
    assert issubclass(nas.DartsTrainer, nas.BaseOneShotTrainer)
    with pytest.raises(TypeError, match="abstract"):
        nas.BaseOneShotTrainer()  # type: ignore[abstract]


def test_a_trainer_shows_its_parts() -> None:
    model = small()
    trainer = make(nas.DartsTrainer, model, metrics=accuracy)
    assert trainer.model is model
    assert trainer.device == torch.device("cpu")
    assert trainer.optimizer is trainer.core.optimizers()["weights"]
    assert list(trainer.space.decisions) == ["layer", "inner", "skip"]


def test_a_bound_of_zero_clips_nothing_as_nni_has_it() -> None:
    runs = {bound: make(nas.DartsTrainer, grad_clip=bound, seed=3) for bound in (0, None, 1e-6)}
    for trainer in runs.values():
        trainer.fit(max_steps=4)
    weights = {bound: nn.utils.parameters_to_vector(trainer.model.parameters()) for bound, trainer in runs.items()}
    assert torch.equal(weights[0], weights[None])
    assert not torch.equal(weights[0], weights[1e-6])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"batch_size": 4},
            "DartsTrainer: batch_size=4 has no effect: the data is a DataLoader with batch_size=8, a Data",
        ),
        (
            {"workers": 2},
            r"DartsTrainer has \['num_workers'\], but the data is a DataLoader already, which they cannot",
        ),
    ],
)
def test_what_loaders_are_made_with_is_refused_where_the_loaders_are_ready(given: dict[str, Any], text: str) -> None:
    train, validation = (DataLoader(data(), batch_size=8) for _ in range(2))
    arguments: dict[str, Any] = {"dataset": train, "validation_dataset": validation, "optimizer": sgd, "num_epochs": 1}
    with pytest.raises(ConfigError, match=text):
        nas.DartsTrainer(small(Flat), nn.CrossEntropyLoss(), **arguments, **given)
    result = nas.DartsTrainer(small(Flat), nn.CrossEntropyLoss(), **arguments, callbacks=()).fit()
    assert result.steps == 12
    mixed = {**arguments, "validation_dataset": data(24), "batch_size": 4, "callbacks": ()}
    assert nas.DartsTrainer(small(Flat), nn.CrossEntropyLoss(), **mixed).fit().steps == 12
