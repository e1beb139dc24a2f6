"""Every key takes what it can mean, and says what it takes; a misspelt key is refused wherever it is written."""

import ast
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import open_dict
from torch import Tensor

import treadle.config.configs
from tests.engine.parts import Classifier, Points, make_config
from tests.engine.test_keys import ALL
from treadle.config import ConfigDict, LazyCall, LazyConfig
from treadle.config.key_types import Key, check_section, packaged_keys
from treadle.engine import DefaultTrainer, default_argument_parser, default_setup
from treadle.engine.config.builders import complete
from treadle.engine.config.options import read_precision
from treadle.errors import ConfigError
from treadle.tools.run_config import load_for_run

TRAIN = packaged_keys("common/train.py", "train")
YAML = """
model: {_target_: tests.engine.parts.Classifier}
optim: {_target_: torch.optim.SGD, lr: 0.1}
dataloader: {train: {_target_: tests.engine.parts.Points}}
train:
  output_dir: out
  train_iter: 2
  dist: {device_type: cpu}
"""


def written(folder: Path, **sections: Any) -> ConfigDict:
    """Return a YAML config with `sections` over the usual ones, as it is read from a file."""
    config = LazyConfig.load(_file(folder, YAML.replace("output_dir: out", f"output_dir: {folder / 'out'}")))
    for name, value in sections.items():
        merged = {**dict(config.get(name) or {}), **value} if isinstance(value, dict) else value
        config = ConfigDict({**config, name: merged})
    LazyConfig.save(config, folder / "own.yaml")
    return LazyConfig.load(folder / "own.yaml")


def _file(folder: Path, text: str) -> Path:
    path = folder / "base.yaml"
    path.write_text(text)
    return path


def refusal(build: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        build()
    return str(caught.value)


# The table ------------------------------------------------------------------------------------------------------


def flat(keys: Mapping[str, Any], above: str) -> Iterator[tuple[str, Key]]:
    for name, below in keys.items():
        if isinstance(below, Mapping):
            yield from flat(below, f"{above}.{name}")
        else:
            yield f"{above}.{name}", below


def test_every_key_has_a_type_and_no_type_is_of_a_key_that_is_not_there() -> None:
    table = {**dict(flat(TRAIN, "train")), **dict(flat(packaged_keys("common/models/graph.py", "graph"), "graph"))}
    assert set(table) == ALL
    assert [key for key, known in table.items() if known.kind is type(None)] == []
    folder = Path(next(iter(treadle.config.configs.__path__)))
    for file, section in (("common/train.py", "train"), ("common/models/graph.py", "graph")):
        tree = ast.parse((folder / file).read_text())
        tables = {
            node.targets[0].id: [key.value for key in node.value.keys]  # type: ignore[union-attr]
            for node in tree.body
            if isinstance(node, ast.Assign) and node.targets[0].id.startswith("_")  # type: ignore[attr-defined]
        }
        assert {f"{section}.{key}" for keys in tables.values() for key in keys} - ALL == set()


def test_every_default_is_of_its_type() -> None:
    assert check_section(complete({"train": {}}), "train", TRAIN) == []


# Values ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ("amp", True, "is no value: train.amp holds settings; write train.amp.enabled=True"),
    ("amp", "off", "is no value: train.amp holds settings; write train.amp.enabled=False"),
    ("zero_optimization", True, "is no value: train.zero_optimization holds settings; write train.zero_optimization."),
    ("evaluation", None, "must be a mapping with some of ['enabled', 'evaluator', 'eval_period', "),
    ("dist", "cpu", "must be a mapping with some of ['data_parallel_size', "),
    ("deterministic", "maybe", "must be True or False"),
    ("amp.enabled", 2, "must be True or False"),
    ("evaluation.eval_period", 2.5, "must be a whole number"),
    ("train_iter", True, "must be a whole number"),
    ("train_iter", "100", "must be a whole number"),
    ("log_period", 0, "must be a whole number from 1 up"),
    ("checkpointer.max_to_keep", 0, "must be a whole number or None from 1 up"),
    ("resume", 5, "must be True or False, text or None"),
    ("evaluation.eval_mode", "maximum", "must be 'max' or 'min'"),
    ("output_dir", 5, "must be text or a path"),
    ("activation_checkpoint.modules", "Block", "must be a list of texts or None"),
    ("activation_checkpoint.modules", [1], "must be a list of texts or None"),
    ("scheduler", "cosine", "must be a LazyCall or None"),
    ("evaluation.evaluator", None, "must be a LazyCall or a mapping"),
    ("peak_flops", "fast", "must be a number or None"),
    ("amp.loss_scaling", 8, "must be a mapping or None"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_wrong_value_is_refused_wherever_it_stands(tmp_path: Path, key: str, value: Any, message: str) -> None:
    *way, last = key.split(".")
    settings: dict[str, Any] = {last: value}
    for part in reversed(way):
        settings = {part: settings}
    told = f"train.{key}={value!r}"

    python = make_config(tmp_path / "run")
    python.train.update(settings)
    assert refusal(lambda: DefaultTrainer(python)).startswith(f"{told} {message}")

    from_file = written(tmp_path, train={"output_dir": "run", **settings})
    place = f" in {tmp_path / 'own.yaml'}"
    assert refusal(lambda: DefaultTrainer(from_file)).startswith(f"{told}{place} {message}")
    assert not (tmp_path / "run").exists(), "it was found out too late"

    text = {True: "true", None: "null"}.get(value, value) if value.__hash__ else value  # as a command line has it
    override = f"train.{key}='{text}'" if isinstance(value, str) else f"train.{key}={text}"
    by_override = complete(make_config(tmp_path / "run"))
    LazyConfig.apply_overrides(by_override, [override])
    assert refusal(lambda: DefaultTrainer(by_override)).startswith(f"{told} (by {override!r}) {message}")


@pytest.mark.parametrize("word", ["off", "no", "false", "False", "OFF", '"False"'])
def test_words_for_no_switch_off(tmp_path: Path, word: str) -> None:
    made = make_config(tmp_path, amp={"enabled": True})
    LazyConfig.apply_overrides(made, [f"train.amp.enabled={word}"])
    assert read_precision(complete(made)) == "fp32"
    made = make_config(tmp_path, amp={"enabled": word.strip('"')})
    assert complete(made).train.amp.enabled is False


@pytest.mark.parametrize("word", ["on", "yes", "true", "True", "1"])
def test_words_for_yes_switch_on(tmp_path: Path, word: str) -> None:
    made = make_config(tmp_path, amp={"enabled": False})
    LazyConfig.apply_overrides(made, [f"train.amp.enabled={word}"])
    assert read_precision(complete(made)) == "bf16"


def test_values_that_can_only_mean_one_thing_are_taken_as_that(tmp_path: Path) -> None:
    made = make_config(tmp_path, train_iter=1e1, resume="yes", evaluation={"eval_iter": 1e5, "enabled": 0})
    full = complete(made).train
    assert (full.train_iter, type(full.train_iter), full.resume) == (10, int, True)
    assert (full.evaluation.eval_iter, type(full.evaluation.eval_iter), full.evaluation.enabled) == (
        100_000,
        int,
        False,
    )
    assert complete(make_config(tmp_path, output_dir=tmp_path)).train.output_dir == tmp_path
    assert complete(make_config(tmp_path, resume="auto")).train.resume == "auto"
    assert complete(make_config(tmp_path, peak_flops=5, warmup_ratio=0.5)).train.warmup_ratio == 0.5


def test_interpolations_are_looked_through(tmp_path: Path) -> None:
    made = make_config(tmp_path, deterministic="${flag}", test_micro_batch_size="${train.global_batch_size}")
    made.flag = "off"
    assert complete(made).train.deterministic is False
    made.flag = "maybe"
    assert refusal(lambda: complete(made)) == "train.deterministic='maybe' must be True or False"


def test_a_number_format_is_looked_at_where_nothing_uses_it(tmp_path: Path) -> None:
    made = make_config(tmp_path, amp={"enabled": False, "dtype": "int8"})
    assert refusal(lambda: DefaultTrainer(made)) == "train.amp.dtype='int8' is unknown; use 'bf16' or 'fp16'"
    assert read_precision(make_config(tmp_path, amp={"enabled": True, "dtype": torch.float16})) == "fp16"


def test_a_placement_that_is_no_device_is_refused(tmp_path: Path) -> None:
    made = make_config(tmp_path, input_placement_device="maybe")
    assert refusal(lambda: DefaultTrainer(made)) == (
        "train.input_placement_device='maybe' is no device; use 'cuda', 'cpu' or None"
    )


def test_the_keys_of_graph_have_types_too(tmp_path: Path) -> None:
    def graph(value: Any) -> str:
        made = make_config(tmp_path)
        made.graph = value
        return refusal(lambda: DefaultTrainer(made))

    assert graph({"enabled": "maybe"}) == "graph.enabled='maybe' must be True or False"
    assert graph({"enabeld": True}) == "unknown key 'graph.enabeld'; did you mean 'graph.enabled'?"
    assert graph(True) == "graph=True is no value: graph holds settings; write graph.enabled=True"
    made = make_config(tmp_path)
    made.graph = {"enabled": "off"}
    assert complete(made).graph.enabled is False


def test_the_command_line_refuses_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _file(tmp_path, YAML)
    assert refusal(lambda: load_for_run("base.yaml", ["train.amp=true"])) == (
        "train.amp=True (by 'train.amp=true') is no value: train.amp holds settings; write train.amp.enabled=True"
    )
    assert load_for_run("base.yaml", ["train.amp.enabled=off", "train.train_iter=1e3"]).train.train_iter == 1000
    made = make_config(tmp_path, deterministic="maybe")
    arguments = default_argument_parser().parse_args([])
    assert refusal(lambda: default_setup(made, arguments)) == "train.deterministic='maybe' must be True or False"


class Formats(Classifier):
    """A classifier that notes the number format that it computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.dtype] = []

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen.append(self.head(self.body(inputs)).dtype)
        return super().forward(inputs, labels)


def test_an_evaluation_of_a_config_that_no_trainer_has_seen_checks_it(tmp_path: Path) -> None:
    made = complete(make_config(tmp_path))
    made.train.amp.enabled = "off"
    loaders, model = DefaultTrainer.build_test_loader(made), Formats()
    model.eval()
    DefaultTrainer.test(made, loaders, model)
    assert set(model.seen) == {torch.float32}
    made.train.amp = True
    assert refusal(lambda: DefaultTrainer.test(made, loaders, model)) == (
        "train.amp=True is no value: train.amp holds settings; write train.amp.enabled=True"
    )


# Overrides of other things than the keys above ------------------------------------------------------------------


def test_a_word_for_no_switches_off_any_truth_value_that_an_override_meets() -> None:
    config = ConfigDict({"optim": LazyCall(torch.optim.SGD)(nesterov=True), "own": {"flag": True, "text": "on"}})
    LazyConfig.apply_overrides(config, ["optim.nesterov=off", "own.flag=no", "own.text=off", "+optim.maximize=no"])
    assert (config.optim.nesterov, config.own.flag, config.own.text, config.optim.maximize) == (
        False,
        False,
        "off",
        False,
    )


# Names ----------------------------------------------------------------------------------------------------------

MISSPELT = [
    ({"train_itr": 5}, "train_itr", "train_iter"),
    ({"amp": {"enable": True}}, "amp.enable", "amp.enabled"),
    ({"evaluaton": {"enabled": False}}, "evaluaton", "evaluation"),
    ({"dist": {"tensor_paralel_size": 2}}, "dist.tensor_paralel_size", "dist.tensor_parallel_size"),
    ({"eval_period": 5}, "eval_period", "evaluation.eval_period"),
    ({"max_iter": 5}, "max_iter", "train_iter"),
    ({"evaluation": {"log_period": 5}}, "evaluation.log_period", "log_period"),
]


@pytest.mark.parametrize(("settings", "written_as", "meant"), MISSPELT, ids=lambda value: str(value)[:30])
def test_a_misspelt_key_is_refused_in_yaml_and_in_ones_own_dict(
    tmp_path: Path, settings: dict[str, Any], written_as: str, meant: str
) -> None:
    from_file = written(tmp_path, train={"output_dir": "out", **settings})
    assert refusal(lambda: DefaultTrainer(from_file)) == (
        f"unknown key 'train.{written_as}' in {tmp_path / 'own.yaml'}; did you mean 'train.{meant}'?"
    )
    own = make_config(tmp_path)
    plain = {**own, "train": {"output_dir": str(tmp_path), **settings}}
    assert refusal(lambda: DefaultTrainer(plain)) == (
        f"unknown key 'train.{written_as}'; did you mean 'train.{meant}'?"
    )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"grpah": {"enabled": True}}, "unknown key 'grpah' in {file}; did you mean 'graph'?"),
        ({"tokenizaton": {}}, "unknown key 'tokenizaton' in {file}; did you mean 'tokenization'?"),
        ({"traner": "a.B"}, "unknown key 'traner' in {file}; did you mean 'trainer'?"),
        ({"dataloader": {"tset": []}}, "unknown key 'dataloader.tset' in {file}; did you mean 'dataloader.test'?"),
        (
            {"tokenization": {"make_vocab_size_divisible": 8}},
            "unknown key 'tokenization.make_vocab_size_divisible' in {file}; did you mean "
            "'tokenization.make_vocab_size_divisible_by'?",
        ),
        ({"optim": "sgd"}, "optim='sgd' in {file} must be a LazyCall or a mapping"),
        ({"model": "gpt"}, "model='gpt' in {file} must be a LazyCall or a mapping"),
        ({"dataloader": {"train": "data"}}, "dataloader.train='data' in {file} must be a LazyCall, a list or None"),
        ({"tokenization": {"tokenizer": "bert"}}, "tokenization.tokenizer='bert' in {file} must be a LazyCall or None"),
        ({"train": 5}, "train=5 in {file} must be a mapping with some of ['output_dir', "),
    ],
)
def test_the_names_around_train_are_looked_at_too(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    told = refusal(lambda: DefaultTrainer(written(tmp_path, **sections)))
    assert told.startswith(message.format(file=tmp_path / "own.yaml"))


def test_an_optimizer_that_was_made_already_is_refused(tmp_path: Path) -> None:
    made = make_config(tmp_path)
    made.optim = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    told = refusal(lambda: DefaultTrainer(made))
    assert told.startswith("optim=SGD (")
    assert told.endswith(" must be a LazyCall of an optimizer; its parameters are the model's")


def test_keys_of_ones_own_are_kept_and_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = make_config(tmp_path)
    with open_dict(made.train):
        made.train.update(colour="red", stage="first", own={"train_itr": 1}, amp={"level": 2})
    made.dataloader.valid, made.models, made.anything = None, [], 5
    with caplog.at_level(logging.WARNING):
        trainer = DefaultTrainer(made)
    assert trainer.cfg.train.colour == "red"
    told = [record.message for record in caplog.records if "does not read" in record.message]
    assert told == [
        "keys that Treadle does not read, left to your own code: train.amp.level, train.colour, train.stage, "
        "train.own, dataloader.valid"
    ]


def test_a_run_that_was_saved_has_no_unknown_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DefaultTrainer(make_config(tmp_path, train_iter=1)).train()
    saved = LazyConfig.load(tmp_path / "config.yaml")
    saved.train.update(resume=True)
    with caplog.at_level(logging.WARNING):
        assert DefaultTrainer(saved).start_iter == 1
    assert "does not read" not in caplog.text


def loader_of(batch_size: int = 1, **others: Any) -> Any:
    """Return a loader with batches of one, unless the run says otherwise."""
    return torch.utils.data.DataLoader(Points(), batch_size=batch_size, **others)


def test_a_call_that_takes_anything_gets_the_numbers_of_the_run_that_it_names(tmp_path: Path) -> None:
    made = make_config(tmp_path)
    made.dataloader = {"train": LazyCall(loader_of)(drop_last=True)}
    assert DefaultTrainer(made).train_loader.batch_size == 8
