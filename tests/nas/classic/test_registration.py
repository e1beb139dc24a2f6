"""Classic trainers: registered, recorded by name, made again in another process (behaviours 1 to 10)."""

import inspect
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.forking.starting import run
from tests.nas.classic.parts import Add, Colour, Loose, Migrated, PointTrainer, Shifted, points
from treadle import nas
from treadle.config import LazyCall
from treadle.errors import ConfigError
from treadle.search.recorded_calls import find_record

ROOT = Path(__file__).parents[3]


def network() -> nn.Module:
    return nn.Linear(2, 2)


def through_json(trainer: Any, model: Any = None, **options: Any) -> Any:
    return nas.load_trainer(json.dumps(nas.dump_trainer(trainer)), network() if model is None else model, **options)


def test_behaviour_1_a_registered_class_is_the_class_it_was() -> None:
    class Plain(nas.BaseTrainer):
        """What it says."""

        def __init__(self, model: Any, rate: float = 0.1) -> None:
            self.model, self.rate = model, rate

        def fit(self) -> None:
            """Do nothing."""

    signature, method = inspect.signature(Plain), Plain.fit
    registered = nas.register_trainer(Plain)
    assert registered is Plain
    assert (Plain.__name__, Plain.__doc__, inspect.signature(Plain), Plain.fit) == (
        "Plain",
        "What it says.",
        signature,
        method,
    )
    made = Plain("a model", 0.2)
    assert isinstance(made, nas.BaseTrainer)
    assert (made.model, made.rate) == ("a model", 0.2)


def test_behaviour_2_positional_named_and_default_arguments_are_recorded_by_name() -> None:
    @nas.register_trainer
    class Recorded(nas.BaseTrainer):
        def __init__(self, model: Any, a: int, b: str = "x", *, c: Any = None) -> None:
            pass

        def fit(self) -> None:
            """Do nothing."""

    record = find_record(Recorded(None, 1, c=[1, 2]))
    assert record is not None
    assert record.arguments == {"a": 1, "b": "x", "c": [1, 2]}


@pytest.mark.slow
def test_behaviour_3_a_trainer_is_made_again_in_a_fresh_process_with_the_model_first() -> None:
    trainer = PointTrainer(network(), Shifted(LazyCall(points)(count=8), Add(2.0)), epochs=3, betas=(0.5, 0.75))
    program = """
import json, sys
from torch import nn
from treadle import nas
assert "tests.nas.classic.parts" not in sys.modules
model = nn.Linear(2, 2)
trainer = nas.load_trainer(sys.argv[1], model)
assert "tests.nas.classic.parts" in sys.modules
assert trainer.model is model
print(json.dumps([type(trainer).__name__, nas.dump_trainer(trainer), len(trainer.dataset), trainer.betas]))
"""
    text = json.dumps(nas.dump_trainer(trainer))
    done = run("-c", program, text, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["PointTrainer", json.loads(text), 8, [0.5, 0.75]]


def test_all_kinds_of_arguments_come_back_as_they_were() -> None:
    given: dict[str, Any] = {
        "none": None,
        "floats": [0.1, float("inf"), True],
        "tuple": (1, (2, "x")),
        "mapping": {1: "one", "$odd": [1]},
        "sets": [{3, 1}, frozenset({2})],
        "path": Path("data/x"),
        "named": [Colour.RED, torch.bfloat16, torch.optim.AdamW, points],
        "device": torch.device("cpu"),
        "size": torch.Size([2, 3]),
        "partial": partial(points, 4, seed=1),
    }
    again = through_json(Loose(None, 1, 2, 3, **given))
    assert (again.first, again.rest) == (1, (2, 3))
    made = again.options.pop("partial")
    assert (made.func, made.args, made.keywords) == (points, (4,), {"seed": 1})
    del given["partial"]
    assert again.options == given
    assert [type(one) for one in again.options["sets"]] == [set, frozenset]


def test_numbers_of_numpy_are_recorded_as_numbers() -> None:
    import numpy as np

    assert through_json(Loose(None, np.int64(3), rate=np.float32(0.5))).options == {"rate": 0.5}


def test_nan_is_recorded_in_strict_json() -> None:
    text = json.dumps(nas.dump_trainer(Loose(None, 1, rate=float("nan"))), allow_nan=False)
    again = nas.load_trainer(text, None)
    assert again.options["rate"] != again.options["rate"]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (TensorDataset(torch.zeros(1)), "torch.utils.data.dataset.TensorDataset"),
        (torch.zeros(2), "torch.Tensor"),
        (nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (object(), "object"),
    ],
    ids=["a data set", "a tensor", "a module", "an object"],
)
def test_behaviour_4_what_cannot_be_made_again_is_refused_at_construction_by_name(value: Any, what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PointTrainer(network(), value)
    assert str(refused.value) == (
        f"PointTrainer: argument 'dataset' is a {what}, which cannot be made again in another process; pass plain "
        "data, a LazyCall that makes it (LazyCall(TensorDataset)(...)), or decorate its class with @nas.recorded"
    )


def test_behaviour_4_the_place_inside_an_argument_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^Loose: argument 'options'\['steps'\]\[1\] is a torch.Tensor, which"):
        Loose(None, 1, steps=[0, torch.zeros(1)])


def test_behaviour_4_a_function_without_a_name_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"argument 'optimizer' cannot be found again by another process: .*lambda"):
        PointTrainer(network(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def test_behaviour_4_nothing_is_run_before_an_argument_is_refused() -> None:
    ran = []

    @nas.register_trainer
    class Loud(nas.BaseTrainer):
        def __init__(self, model: Any, value: Any) -> None:
            ran.append(value)

        def fit(self) -> None:
            """Do nothing."""

    with pytest.raises(ConfigError):
        Loud(None, object())
    assert ran == []


def test_behaviour_5_nested_objects_round_trip_recursively() -> None:
    data = Shifted(Shifted(LazyCall(points)(count=4, seed=3), Add(1.0)), Add(amount=2.0))
    trainer = PointTrainer(network(), data, partial(torch.optim.Adam, lr=0.1))
    again = through_json(trainer)
    assert isinstance(again.dataset, Shifted)
    assert isinstance(again.dataset.inner, Shifted)
    assert (again.dataset.transform.amount, again.dataset.inner.transform.amount) == (2.0, 1.0)
    assert torch.equal(again.dataset[1][0], points(4, seed=3)[1][0] + 3.0)
    assert isinstance(again.optimizer, torch.optim.Adam)
    assert nas.dump_trainer(again) == nas.dump_trainer(trainer)


def test_behaviour_5_a_lazy_call_is_made_for_the_constructor_and_recorded_as_a_call() -> None:
    call = LazyCall(points)(count=4)
    trainer = PointTrainer(network(), call)
    assert isinstance(trainer.dataset, TensorDataset)
    call.count = 6  # what was recorded is the call as it was
    assert len(through_json(trainer).dataset) == 4


def test_behaviour_5_lazy_calls_inside_lists_and_dicts_are_made_too() -> None:
    trainer = Loose(None, 1, data=[LazyCall(points)(count=2)], named={"x": LazyCall(Colour)(value=1)})
    assert len(trainer.options["data"][0]) == 2
    assert trainer.options["named"] == {"x": Colour.RED}
    assert len(through_json(trainer).options["data"][0]) == 2


NOTEBOOK = """
from treadle import nas
from treadle.errors import ConfigError
@nas.register_trainer
class Here(nas.BaseTrainer):
    def __init__(self, model, rate=0.1):
        pass
    def fit(self):
        nas.report_final_result(1.0)
trainer = Here(None)
try:
    nas.dump_trainer(trainer)
except ConfigError as error:
    print(error)
print(nas.Search({"x": nas.one_of(1, 2)}, trainer, trials=1, store="memory").run()["best"]["values"])
try:
    nas.Search({"x": nas.one_of(1, 2)}, trainer, trials=1, store="memory", launcher="processes")
except ConfigError as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_behaviour_6_a_class_of_a_notebook_runs_in_the_process_and_is_refused_early_for_others() -> None:
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    refusal, values, kind = done.stdout.splitlines()
    assert refusal.startswith("Here cannot be made again in another process: <class '__main__.Here'> has no name that ")
    assert (values, kind) == ("{'default': 1.0}", "ConfigError")


@pytest.mark.slow
def test_behaviour_6_a_class_of_a_script_is_found_again_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import json\nfrom treadle import nas\n@nas.register_trainer\nclass Mine(nas.BaseTrainer):\n"
        "    def __init__(self, model, rate=0.1):\n        self.rate = rate\n    def fit(self):\n        pass\n"
        "if __name__ == '__main__':\n    print(json.dumps(nas.dump_trainer(Mine(None, 0.5))))\n"
    )
    done = run(str(script), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert nas.load_trainer(done.stdout, None).rate == 0.5


def test_behaviour_7_loading_unpickles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("something was unpickled")

    text = json.dumps(nas.dump_trainer(PointTrainer(network(), LazyCall(points)(count=4))))
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert len(nas.load_trainer(text, network()).dataset) == 4


def test_behaviour_7_only_what_is_allowed_is_imported() -> None:
    trainer = Loose(None, 1, data=LazyCall("os.getcwd")())
    assert through_json(trainer, allow=["tests", "os"]).options["data"] == str(Path.cwd())
    with pytest.raises(ConfigError, match=r"^'os.getcwd' may not be imported: only \['tests'\] may$"):
        through_json(trainer, allow=["tests"])
    with pytest.raises(ConfigError, match=r"Loose' may not be imported"):
        through_json(trainer, allow=["os"])


def test_behaviour_7_a_name_that_leaves_what_is_allowed_on_its_way_is_not_imported() -> None:
    trainer = Loose(None, 1, data=LazyCall("torch.os.getcwd")())
    with pytest.raises(ConfigError, match=r"^'torch.os.getcwd' may not be imported: only \['tests', 'torch'\] may$"):
        through_json(trainer, allow=["tests", "torch"])
    assert through_json(trainer, allow=["tests", "torch.os"]).options["data"] == str(Path.cwd())


def test_behaviour_7_data_that_name_a_class_that_is_not_registered_make_nothing() -> None:
    data = {"format": "treadle-record-1", "target": "subprocess.Popen", "version": 1, "arguments": {"args": "ls"}}
    with pytest.raises(ConfigError, match=r"'subprocess.Popen' is neither @nas.register_trainer nor @nas.recorded"):
        nas.load_trainer(data, None)


def test_behaviour_8_arguments_without_a_name_round_trip() -> None:
    again = through_json(Loose(None, 1, 2, 3, x=4))
    assert (again.first, again.rest, again.options) == (1, (2, 3), {"x": 4})
    alone = through_json(Loose(None, 1))
    assert (alone.rest, alone.options) == ((), {})


def test_behaviour_8_a_trainer_without_a_place_for_the_model_is_refused_at_decoration() -> None:
    class NoModel(nas.BaseTrainer):
        def __init__(self, *everything: Any) -> None:
            pass

        def fit(self) -> None:
            """Do nothing."""

    with pytest.raises(ConfigError, match=r"NoModel\(\*everything: Any\) .*must take the model as its first argument"):
        nas.register_trainer(NoModel)


def test_behaviour_9_a_renamed_module_is_a_readable_error_or_found_under_its_new_name() -> None:
    data = nas.dump_trainer(PointTrainer(network()))
    old = json.loads(json.dumps(data).replace("tests.nas.classic.parts", "tests.nas.classic.old_parts"))
    with pytest.raises(
        ConfigError,
        match=r"^'tests.nas.classic.old_parts.PointTrainer' cannot be found: tests.nas.classic has no 'old_parts'.*; "
        r"if it has moved, give its new place: renamed=\{'tests.nas.classic.old_parts.PointTrainer': '...'\}$",
    ):
        nas.load_trainer(old, network())
    again = nas.load_trainer(old, network(), renamed={"tests.nas.classic.old_parts": "tests.nas.classic.parts"})
    assert isinstance(again, PointTrainer)


def test_behaviour_9_a_new_default_changes_nothing_that_was_recorded() -> None:
    data = nas.dump_trainer(PointTrainer(network()))
    assert data["arguments"]["epochs"] == 2  # the default is in the record
    data["arguments"]["epochs"] = 5  # what it was when it was recorded
    assert nas.load_trainer(data, network()).epochs == 5


def test_behaviour_9_an_earlier_version_is_migrated() -> None:
    data = {**nas.dump_trainer(Migrated(None)), "version": 1, "arguments": {"learning_rate": 5}}
    assert nas.load_trainer(data, None).rate == 0.05
    assert nas.load_trainer(nas.dump_trainer(Migrated(None, 0.3)), None).rate == 0.3


def test_behaviour_9_an_argument_that_has_gone_is_named_with_the_nearest() -> None:
    data = nas.dump_trainer(PointTrainer(network()))
    data["arguments"]["epoch"] = data["arguments"].pop("epochs")
    with pytest.raises(
        ConfigError,
        match=r"^PointTrainer was recorded with 'epoch', which it does not take any more; did you mean 'epochs'",
    ):
        nas.load_trainer(data, network())


def test_behaviour_9_a_record_of_another_format_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^this is no record of a trainer: its format is 'x', not 'treadle-record-1'$"
    ):
        nas.load_trainer({"format": "x"}, None)
    with pytest.raises(ConfigError, match=r"^this is no record of a trainer: it is no JSON \("):
        nas.load_trainer("gibberish", None)


def test_a_kind_of_value_that_is_not_known_is_refused() -> None:
    data = nas.dump_trainer(Loose(None, 1))
    data["arguments"]["first"] = {"$future": 1}
    with pytest.raises(ConfigError, match=r"^'\$future' is no kind of value that this version of Treadle knows"):
        nas.load_trainer(data, None)


METRIC = """
import json, sys, torch
from torch import nn
from treadle import nas
from treadle.search.trial.task import seeded
from treadle.search.trial.reports import report_trial_to

class Note:
    def intermediate(self, metrics, step): return False
    def final(self, metrics): print(repr(metrics["default"]))

with seeded(7), report_trial_to(Note()):
    nas.load_trainer(sys.argv[1], nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))).fit()
"""


@pytest.mark.slow
def test_behaviour_10_the_same_record_and_seed_give_the_same_metric_in_two_processes() -> None:
    text = json.dumps(nas.dump_trainer(PointTrainer(network(), epochs=3)))
    command = [sys.executable, "-c", METRIC, text]
    one = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    two = run("-c", METRIC, text, cwd=ROOT).stdout
    assert one == two
    assert float(one) > 0


def test_a_subclass_records_its_own_arguments_or_none() -> None:
    class Child(PointTrainer):
        def __init__(self, model: Any, extra: int) -> None:
            super().__init__(model, epochs=extra)
            self.extra = extra

    with pytest.raises(
        ConfigError, match=r"Child does not know its arguments; decorate the class itself with @nas.reg"
    ):
        nas.dump_trainer(Child(network(), 3))
    record = find_record(nas.register_trainer(Child)(network(), 3))
    assert record is not None
    assert record.arguments == {"extra": 3}


@pytest.mark.parametrize("kind", [int, "text", Loose(None, 1)], ids=["another class", "text", "an object"])
def test_only_trainers_are_registered(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"^@nas.register_trainer is for subclasses of nas.BaseTrainer, got "):
        nas.register_trainer(kind)


def test_only_classes_are_recorded() -> None:
    with pytest.raises(ConfigError, match=r"^@nas.recorded is for classes, got <function points"):
        nas.recorded(points)  # type: ignore[type-var]


def test_a_trainer_without_fit_cannot_be_made() -> None:
    class Idle(nas.BaseTrainer):
        def __init__(self, model: Any) -> None:
            pass

    with pytest.raises(TypeError, match="abstract method"):
        Idle(None)  # type: ignore[abstract]
