"""The command line of a training program, what is set up before training, and what a config must have."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.parts import Classifier, Points, make_config
from tests.logs import forget_logs
from treadle.config import ConfigDict, LazyCall, LazyConfig
from treadle.console.lines import DETAIL
from treadle.engine import DefaultTrainer, default_argument_parser, default_setup, setup_logger
from treadle.engine.config.builders import complete
from treadle.errors import ConfigError


def test_the_parser_has_the_usual_options_and_the_rest_are_overrides() -> None:
    arguments = default_argument_parser().parse_args(
        ["--config-file", "a.py", "--resume", "train.train_iter=5", "optim.lr=1e-3"]
    )
    assert (arguments.config_file, arguments.resume, arguments.eval_only) == ("a.py", True, False)
    assert arguments.opts == ["train.train_iter=5", "optim.lr=1e-3"]


def test_the_help_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = default_argument_parser().format_help()
    assert max(map(len, text.splitlines())) <= 80
    assert "path.key=value" in text


def test_a_fast_dev_run_is_short(tmp_path: Path) -> None:
    made = make_config(tmp_path)
    default_setup(made, default_argument_parser().parse_args(["--fast-dev-run", "--resume"]))
    assert (made.train.train_iter, made.train.train_epoch, made.train.log_period) == (20, 0, 1)
    assert made.train.evaluation.eval_period == 10
    assert made.train.resume is True


def test_setting_up_makes_the_folder_starts_the_log_and_switches_rdma_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_IB_DISABLE", raising=False)
    made = make_config(tmp_path / "out", rdma_enabled=False)
    default_setup(made, default_argument_parser().parse_args([]))
    assert os.environ["NCCL_IB_DISABLE"] == "1"
    text = (tmp_path / "out" / "log.txt").read_text()
    assert "rank 0 of 1" in text
    assert "cfg.train.train_iter = 10" in text


def test_a_program_that_evaluates_by_itself_reads_the_config_as_a_trainer_does(tmp_path: Path) -> None:
    made = make_config(tmp_path)
    made.train = {"output_dir": str(tmp_path), "dist": {"device_type": "cpu"}, "amp": {"enabled": "False"}}
    made.graph = {"enabled": "off"}
    default_setup(made, default_argument_parser().parse_args(["--eval-only"]))
    assert (made.train.amp.enabled, made.graph.enabled, made.train.load_weight) == (False, False, "")
    loaders = DefaultTrainer.build_test_loader(made)
    assert set(DefaultTrainer.test(made, loaders, DefaultTrainer.build_model(made))) == {"Acc@1", "Acc@5"}


def test_the_log_goes_to_one_folder_at_a_time_and_nothing_is_written_twice(tmp_path: Path) -> None:
    for name in ("a", "b", "b"):
        setup_logger(tmp_path / name)
    logging.getLogger("treadle.test").info("once")
    assert "once" not in (tmp_path / "a" / "log.txt").read_text()
    assert (tmp_path / "b" / "log.txt").read_text().count("once") == 1


@pytest.fixture
def show_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Let Treadle show its log, as in a program that has not set up logging itself; to be called in the test."""
    # Not before it is called: for the test itself, pytest adds handlers to those that a fixture found.
    yield lambda: monkeypatch.setattr(logging.getLogger(), "handlers", [])
    forget_logs()


def said(message: str, **more: Any) -> None:
    logging.getLogger("treadle.test").info(message, **more)


def test_the_console_has_what_a_user_wants_to_know_and_the_log_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], show_log: Callable[[], None]
) -> None:
    show_log()
    setup_logger(tmp_path)
    said("step 50/600")
    said("BatchSizes(...)", extra=DETAIL)
    logging.getLogger("treadle.test").warning("the disk is nearly full")
    assert capsys.readouterr().out == "step 50/600\nwarning: the disk is nearly full\n"
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.partition("] ")[2] for line in log] == [
        "INFO: step 50/600",
        "INFO: BatchSizes(...)",
        "WARNING: the disk is nearly full",
    ]


def test_a_verbose_console_has_all_that_the_log_has_until_it_is_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], show_log: Callable[[], None]
) -> None:
    show_log()
    setup_logger(verbose=True)
    setup_logger(tmp_path)
    said("BatchSizes(...)", extra=DETAIL)
    assert capsys.readouterr().out == (tmp_path / "log.txt").read_text()
    setup_logger(tmp_path, verbose=False)
    said("BatchSizes(...)", extra=DETAIL)
    assert capsys.readouterr().out == ""


def test_a_run_is_told_by_a_head_its_steps_its_evaluations_and_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], show_log: Callable[[], None]
) -> None:
    show_log()
    made = make_config(tmp_path, log_period=5, evaluation={"enabled": True, "eval_period": 5})
    DefaultTrainer(made).train()
    lines = re.sub(r"(?<=  )\S+ (samples/s|left)", r"N \1", capsys.readouterr().out).splitlines()
    starts = [line.split("  ")[0] for line in lines]
    assert starts[:5] == ["model", "data", "train", "run on", "folder"]
    assert starts[5:7] == ["evaluation", "*best"]
    assert [line for line in starts if line.startswith("step")] == ["step 5/10", "step 10/10"]
    assert [re.sub(r"[\d.]+s", "N", line) for line in lines if line.startswith("trained")] == [
        "trained for 10 steps, N"
    ]
    assert starts[-2:] == ["evaluation", "*best"] or starts[-1] == "evaluation"
    # What an evaluation found stands in its own line, and not in that of a step as well.
    assert not [line for line in lines if line.startswith("step") and "Acc@1" in line]
    assert not [line for line in lines if "INFO" in line]


def test_the_saved_config_has_every_number_and_builds_the_same_run(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path / "a", train_epoch=3, train_iter=1, warmup_ratio=0.1))
    trainer.train()
    saved = LazyConfig.load(tmp_path / "a" / "config.yaml")
    assert (saved.train.train_iter, saved.train.global_batch_size) == (24, 8)
    assert (saved.train.scheduler.max_iter, saved.train.scheduler.warmup_iter) == (24, 3)
    saved.train.output_dir = str(tmp_path / "b")
    again = DefaultTrainer(saved)
    again.train()
    for own, other in zip(again.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_a_config_without_all_keys_of_train_gets_their_defaults(tmp_path: Path) -> None:
    made = ConfigDict({"train": {"output_dir": str(tmp_path), "own_key": 1}})
    full = complete(made)
    assert (full.train.own_key, full.train.log_period, full.train.evaluation.eval_metric) == (1, 20, "Acc@1")
    assert "log_period" not in made.train


@pytest.mark.parametrize("key", ["model", "optim", "dataloader", "train"])
def test_a_config_that_lacks_a_part_is_told_which(tmp_path: Path, key: str) -> None:
    made = make_config(tmp_path)
    del made[key]
    with pytest.raises(ConfigError, match=f"the config has no `{key}"):
        DefaultTrainer(made)


def test_a_model_that_is_none_is_refused(tmp_path: Path) -> None:
    made = make_config(tmp_path)
    made.model = LazyCall(dict)()
    with pytest.raises(ConfigError, match=r"cfg.model builds a dict; it must be a torch.nn.Module"):
        DefaultTrainer(made)


def test_a_loader_with_another_batch_size_is_refused_and_one_without_gets_the_runs(tmp_path: Path) -> None:
    made = make_config(tmp_path)
    made.dataloader.train = LazyCall(torch.utils.data.DataLoader)(dataset=LazyCall(Points)(), batch_size=16)
    with pytest.raises(ConfigError, match=r"dataloader.train has batch_size=16, but the run has 8; leave it out there"):
        DefaultTrainer(made)
    made.dataloader.train = LazyCall(torch.utils.data.DataLoader)(dataset=LazyCall(Points)())
    assert DefaultTrainer(made).train_loader.batch_size == 8


def test_a_tokenizer_sizes_the_vocabulary_and_reaches_the_loader(tmp_path: Path) -> None:
    class Words(list[str]):
        pass

    class Sized(Classifier):
        def __init__(self, cfg: Any) -> None:
            super().__init__()
            self.vocab_size = cfg["vocab_size"]

    def loader(train_batch_size: int, tokenizer: Any, seed: int) -> Any:
        assert (tokenizer, seed) == (["a", "b", "c"], 1234)
        return torch.utils.data.DataLoader(Points(16), batch_size=train_batch_size)

    made = make_config(tmp_path)
    made.tokenization = {"tokenizer": LazyCall(Words)(_args_=[["a", "b", "c"]]), "make_vocab_size_divisible_by": 8}
    made.model = LazyCall(Sized)(cfg={"vocab_size": 1})
    made.dataloader.train = LazyCall(loader)()

    class Unsaved(DefaultTrainer):
        def _save_config(self) -> None:
            """Do not: classes inside of a test have no name to be found by."""

    trainer = Unsaved(made)
    assert trainer.model.vocab_size == 8
    assert trainer.tokenizer == ["a", "b", "c"]


def test_a_cuda_run_on_a_machine_without_says_that_it_uses_the_cpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    DefaultTrainer(make_config(tmp_path, dist={"device_type": "cuda"}))
    assert "but there is no CUDA device: training on the CPU" in caplog.text


def test_get_batch_is_given_what_its_signature_takes(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Own(DefaultTrainer):
        @classmethod
        def get_batch(cls, data: Any, input_placement_device: Any = None, mixup_func: Any = None) -> Any:
            seen.append((input_placement_device, mixup_func is not None))
            return super().get_batch(data, "cpu", mixup_func)

    made = make_config(tmp_path, train_iter=1)
    trainer = Own(made)
    trainer.train_loader.mixup_func = lambda batch: {**batch, "inputs": batch["inputs"] * 0}
    trainer.train()
    assert seen == [("cuda", True)]
