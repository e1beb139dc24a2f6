"""Whatever needs a package of an extra says which extra brings it, where the package is not installed."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from treadle.checkpoint.format.program import export_onnx
from treadle.data.prepare.text_files import Reading, cut_files
from treadle.data.prepare.tokenizer import Tokenizer
from treadle.data.sources import ImageFolder, Parquet
from treadle.engine.evaluation import BLEUEvaluator
from treadle.errors import MissingDependencyError
from treadle.hf.adapters import add_adapters
from treadle.hf.export import load_pretrained
from treadle.optim.lr_finder import LearningRateSweep
from treadle.recsys import optional
from treadle.search.launchers.ray import Ray
from treadle.search.store.store import optuna
from treadle.tools.report.page import plotly_source


def written(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def run_of_transformers(folder: Path) -> Path:
    """Write the little of a run that is looked at before its model is built."""
    from treadle.checkpoint import CheckpointStore, Policy

    written(folder / "pretrained" / "config.json", "{}")
    state = {"tracked": {"model": {"weight": {"__kind__": "tensor", "name": "tracked.model.weight"}}}}
    store = CheckpointStore(folder / "checkpoints", Policy())
    store.write(1, state, {"tracked.model.weight": torch.zeros(2)}, {}, "attempt")
    return folder


def export(folder: Path) -> None:
    export_onnx(nn.Linear(2, 1), {"input": torch.zeros(1, 2)}, folder / "model.onnx")


def picture(folder: Path) -> None:
    ImageFolder(written(folder / "pictures" / "a" / "1.png").parents[1])[0]


ONNX = "an ONNX file needs onnx, onnxscript and onnxruntime; pip install 'treadle[onnx]'"
ENTRIES: list[tuple[str, Callable[[Path], Any], str]] = [
    ("onnx", export, ONNX),
    ("onnxscript", export, ONNX),
    ("onnxruntime", export, ONNX),
    ("peft", lambda folder: add_adapters(None, folder), "a model with adapters needs peft; pip install 'treadle[hf]'"),
    (
        "transformers",
        lambda folder: load_pretrained(run_of_transformers(folder)),
        "a model of transformers needs transformers; pip install 'treadle[hf]'",
    ),
    (
        "transformers",
        Tokenizer,
        "A tokenizer without a tokenizer.json needs transformers; pip install 'treadle[hf]'",
    ),
    (
        "tokenizers",
        lambda folder: Tokenizer(written(folder / "tokenizer.json")),
        "A tokenizer needs tokenizers; pip install 'treadle[hf]'",
    ),
    ("sacrebleu", lambda folder: BLEUEvaluator(), "BLEUEvaluator needs sacrebleu; pip install 'treadle[hf]'"),
    (
        "pyarrow",
        lambda folder: Parquet(written(folder / "a.parquet")),
        "Parquet needs pyarrow; pip install 'treadle[data]'",
    ),
    (
        "pyarrow",
        lambda folder: cut_files([written(folder / "a.parquet")], Reading("text"), 1),
        "Reading Parquet needs pyarrow; pip install 'treadle[data]'",
    ),
    ("PIL", picture, "decoding images needs PIL; pip install 'treadle[images]'"),
    (
        "matplotlib",
        lambda folder: LearningRateSweep([0.1], [1.0], [1.0]).plot(folder / "sweep.png"),
        "LearningRateSweep.plot needs matplotlib; pip install 'treadle[plot]'",
    ),
    ("optuna", lambda folder: optuna(), "a search over trials needs optuna; pip install 'treadle[search]'"),
    ("ray", lambda folder: Ray(1, lambda *_: None), "launcher='ray' needs ray; pip install 'treadle[ray]'"),
    (
        "plotly",
        lambda folder: plotly_source.__wrapped__(),
        "a report needs plotly; pip install 'treadle[report]'",
    ),
    ("scipy", lambda folder: optional.scipy_sparse(), "a sparse matrix needs scipy; pip install 'treadle[recsys]'"),
    ("pyarrow", lambda folder: optional.pyarrow(), "reading data sets needs pyarrow; pip install 'treadle[recsys]'"),
    ("pandas", lambda folder: optional.pandas("This"), "This needs pandas; pip install pandas"),
    (
        "lightgbm",
        lambda folder: optional.lightgbm(),
        "the model LightGBM needs lightgbm; pip install 'treadle[trees]'",
    ),
    (
        "xgboost",
        lambda folder: optional.xgboost(),
        "the model XGBoost needs xgboost-cpu; pip install 'treadle[trees]'",
    ),
]


@pytest.mark.parametrize(("package", "use", "message"), ENTRIES, ids=[f"{one[0]}-{one[2][:20]}" for one in ENTRIES])
def test_without_a_package_its_extra_is_named(
    package: str, use: Callable[[Path], Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError) as caught:
        use(tmp_path)
    assert str(caught.value) == message
