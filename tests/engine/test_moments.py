"""Methods that nobody would call: misspelt moments of hooks, and misspelt verbs of trainers."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.engine.parts import make_config
from treadle.engine import DefaultTrainer, EagerTrainer, HookBase, TrainerBase, hooks
from treadle.engine.hooks.hook_list import HookList
from treadle.errors import ConfigError, UnknownEventError

MOMENTS = "['before_train', 'before_step', 'after_backward', 'after_step', 'after_train']"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        (
            "after_forward",
            f"; hooks have {MOMENTS}",
        ),
        ("before_epoch", f"; hooks have {MOMENTS}"),
        ("on_train_end", f"; hooks have {MOMENTS}"),
        ("after_stpe", "; did you mean 'after_step'?"),
        ("afterstep", "; did you mean 'after_step'?"),
    ],
)
def test_a_hook_with_a_method_that_nobody_calls_is_refused_by_name(name: str, remedy: str) -> None:
    kind = type("Own", (HookBase,), {name: lambda self: None})
    with pytest.raises(UnknownEventError) as caught:
        TrainerBase().register_hooks([type("Child", (kind,), {})()])
    assert str(caught.value) == (
        f"Child.{name} would never be called{remedy}; give a method that is no moment of a run another name"
    )


def test_a_class_method_of_a_hook_that_nobody_calls_is_refused_too() -> None:
    class Own(HookBase):
        @classmethod
        def after_forward(cls) -> None: ...

    with pytest.raises(UnknownEventError, match=r"Own.after_forward would never be called; hooks have"):
        TrainerBase().register_hooks([Own()])


def test_other_methods_of_a_hook_are_its_own_affair() -> None:
    class Own(HookBase):
        def after_step(self) -> None: ...

        def report(self) -> None: ...

        def _after_all(self) -> None: ...

    trainer = TrainerBase()
    trainer.register_hooks([Own(), hooks.CallbackHook(before_train=lambda trainer: None)])
    assert len(trainer.hook_list) == 2


def test_every_hook_that_there_is_passes() -> None:
    for name in hooks.__all__:
        kind: Any = getattr(hooks, name)
        if isinstance(kind, type) and issubclass(kind, HookBase):
            hook = kind.__new__(kind)
            HookList().add(hook)


def test_a_verb_that_is_nearly_one_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Own(DefaultTrainer):
        @classmethod
        def get_bacth(cls, data: Any) -> Any: ...

        def build_optimzer(self) -> None: ...

        def build_eval_loader(self) -> None: ...

        def report(self) -> None: ...

    with caplog.at_level(logging.WARNING):
        Own(make_config(tmp_path))
    told = sorted(record.message for record in caplog.records if "nothing calls" in record.message)
    assert told == [
        "nothing calls Own.build_optimzer; did you mean 'build_optimizer'?",
        "nothing calls Own.get_bacth; did you mean 'get_batch'?",
    ]


def test_a_moment_that_trainers_do_not_have_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Own(TrainerBase):
        def after_forward(self) -> None: ...

        def report(self) -> None: ...

    Own()
    assert [record.message for record in caplog.records] == [f"the loop calls no Own.after_forward; it calls {MOMENTS}"]


class Acting(EagerTrainer):
    """An inner trainer that wants to act after its steps."""

    def after_step(self) -> None: ...


def test_what_an_inner_trainer_has_that_nobody_calls_is_refused_by_name(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path))
    parts = (trainer.model, trainer.train_loader, trainer.optimizer)
    trainer._trainer = Acting(*parts)
    with pytest.raises(ConfigError) as caught:
        trainer.train()
    assert str(caught.value) == (
        "Acting.after_step would never be called: DefaultTrainer has the loop, and Acting makes the steps; define it "
        "in DefaultTrainer"
    )
    trainer._trainer = EagerTrainer(*parts)
    trainer._trainer.register_hooks([hooks.IterationTimer()])
    with pytest.raises(ConfigError) as caught:
        trainer.train()
    assert str(caught.value) == (
        "_trainer of DefaultTrainer has hooks that nobody would call, ['IterationTimer']: register them with "
        "DefaultTrainer itself"
    )


class Pair:
    """Two processes, of which this is the first."""

    distributed, rank = True, 0

    def __init__(self, other: list[str]) -> None:
        self.other = other

    def gather_objects(self, own: Any) -> list[Any]:
        return [own, self.other]


def test_a_hook_in_which_all_processes_act_must_be_on_each_of_them() -> None:
    found = HookList()
    for hook in (hooks.IterationTimer(), hooks.EvalHook(5, dict), hooks.PeriodicWriter([])):
        found.add(hook)
    found.check_others(Pair(["EvalHook"]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        found.check_others(Pair([]))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "process 0 has the hooks ['EvalHook'], and process 1 []: all processes act in these together, so register the "
        "same on each, in the same order"
    )
