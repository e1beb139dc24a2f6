"""The schedules with warm-up, to choose one for `train.scheduler`.

`optimizer`, `max_iter` and `warmup_iter` are added when the run is set up, and milestones may be shares of it.
"""

from treadle.config import LazyCall

_HOME = "treadle.schedules.warmup_lr"
_WARMUP = {"warmup_factor": 0.001, "warmup_method": "linear"}

WarmupCosineLR = LazyCall(f"{_HOME}.WarmupCosineLR")(alpha=0.01, **_WARMUP)
WarmupCosineAnnealingLR = LazyCall(f"{_HOME}.WarmupCosineAnnealingLR")(eta_min=0.0, **_WARMUP)
WarmupStepLR = LazyCall(f"{_HOME}.WarmupStepLR")(step_size="???", gamma=0.1, **_WARMUP)
WarmupMultiStepLR = LazyCall(f"{_HOME}.WarmupMultiStepLR")(milestones="???", gamma=0.1, **_WARMUP)
WarmupExponentialLR = LazyCall(f"{_HOME}.WarmupExponentialLR")(gamma="???", **_WARMUP)
WarmupPolynomialLR = LazyCall(f"{_HOME}.WarmupPolynomialLR")(
    end_learning_rate=0.0001, power=1.0, cycle=False, **_WARMUP
)
