"""Every line of the import map works, and no public name of the other systems is missing from it."""

import ast

import pytest

from tests.contract.pages import IMPORT_MAP, read_import_map, run

PUBLIC_NAMES = {
    "": "Trainer TrainerPlaceholderValues notebook_launcher __version__",
    ".trainer": "DEFAULT_CALLBACKS Trainer TrainerPlaceholderValues TrainerWithTimmScheduler "
    "replace_trainer_placeholder_values",
    ".callbacks": "CallbackHandler CallbackMethodNotImplementedError ConvertSyncBatchNormCallback "
    "EarlyStoppingCallback LimitBatchesCallback LimitEvalStepsCallback LogMetricsCallback ModelEmaCallback "
    "MoveModulesToDeviceCallback PrintProgressCallback ProgressBarCallback SaveBestModelCallback "
    "SaveTrainingStateCallback StepBasedEvaluationCallback StopTrainingError TerminateOnNaNCallback TrainerCallback "
    "WSDCheckpointCallback get_default_callbacks",
    ".tracking": "InMemoryRunHistory LossTracker RunHistory",
    ".run_config": "TrainerRunConfig",
    ".schedulers": "CosineLrScheduler SchedulerBase StatefulSchedulerBase WSDLrScheduler",
    ".schedulers.cosine_scheduler": "CosineLrScheduler",
    ".schedulers.scheduler_base": "SchedulerBase StatefulSchedulerBase",
    ".schedulers.wsd_scheduler": "WSDLrScheduler estimate_checkpoint_steps",
    ".finetuning": "BN_MODULES Layer LayerGroup ModelFreezer",
    ".utils": "DataLoaderSlice LIMIT_BATCHES_ENV_VAR LimitBatches ModelEma local_process_zero_first "
    "local_process_zero_only remove_padding worker_init_fn world_process_zero_only",
}
"""What pytorch-accelerated 0.1.61 defines, module by module."""


def bound_name(line: str) -> str:
    """Return the name that an import line gives."""
    (node,) = ast.parse(line).body
    assert isinstance(node, ast.ImportFrom)
    (alias,) = node.names
    return alias.asname or alias.name


@pytest.mark.parametrize(("theirs", "ours"), read_import_map().items())
def test_our_line_gives_the_name_that_theirs_gave(theirs: str, ours: str) -> None:
    name = bound_name(theirs)
    assert bound_name(ours) == name
    assert run(ours)[name] is not None


@pytest.mark.parametrize(("module", "names"), PUBLIC_NAMES.items())
def test_every_public_name_of_pytorch_accelerated_is_in_the_map(module: str, names: str) -> None:
    text = IMPORT_MAP.read_text()
    lines = [f"| `from pytorch_accelerated{module} import {name}` |" for name in names.split()]
    assert [line for line in lines if text.count(line) != 1] == []


def test_each_line_of_theirs_stands_in_the_map_once() -> None:
    rows = [line for line in IMPORT_MAP.read_text().splitlines() if line.startswith("| `from ")]
    theirs = [row.split("`")[1] for row in rows]
    assert len(theirs) == len(set(theirs))
