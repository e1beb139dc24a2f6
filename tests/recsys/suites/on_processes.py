"""What every model measures and learns, to be compared between one process and several; everything is in float64."""

from pathlib import Path
from typing import Any

from tests.recsys.models.tiny_shop import WHOLE
from tests.recsys.suites.every_model import make

WITHOUT_NOISE: dict[str, dict[str, Any]] = {
    **{name: {"dropout_prob": 0.0} for name in ("NeuMF", "GCMC", "GRU4Rec", "Caser", "WideDeep", "DeepFM")},
    **{name: {"hidden_dropout_prob": 0.0, "attn_dropout_prob": 0.0} for name in ("SASRec", "S3Rec", "BERT4Rec")},
    **{name: {"hidden_dropout_prob": 0.0, "attn_dropout_prob": 0.0} for name in WHOLE},
    "SimpleX": {"dropout_prob": 0.0, "reg_weight": 0.0},
    "CDAE": {"corruption_ratio": 0.0},
    "NGCF": {"message_dropout": 0.0, "require_pow": True},
    "NARM": {"dropout_probs": [0.0, 0.0]},
    "KGAT": {"mess_dropout": 0.0},
    "KGIN": {"node_dropout_rate": 0.0, "mess_dropout_rate": 0.0},
    # Items are near their entities by a mean over those of a batch, each once.
    "KTUP": {"use_st_gumbel": False, "align_weight": 0.0},
}
"""Settings without noise that each process draws for itself, and without penalties that are no mean over rows."""
OF_WHOLE_BATCHES = {
    "MultiVAE": "draws from a Gaussian inside",
    "RecVAE": "draws from a Gaussian inside",
    **dict.fromkeys(("DIN", "DIEN", "DCN", "DCNv2"), "normalises over a batch, which processes share on CUDA only"),
}
"""Models for which a share of a batch is not a part of the loss of the whole batch."""


def outcome(folder: Path, name: str) -> dict[str, Any]:
    """Return the metrics of a model before any training, and its weights and metrics afterwards."""
    run = make(folder, name, double=True, **WITHOUT_NOISE.get(name, {}))
    before = None
    if list(run.model.parameters()):
        before = run.trainer.evaluate(run.valid, load_best_model=False).exact
    run.fit()
    return {
        "before": before,
        "weights": {key: value.double() for key, value in run.model.state_dict().items()},
        "valid": run.trainer.evaluate(run.valid).exact,
        "test": run.trainer.evaluate(run.test, load_best_model=False).exact,
    }
