"""Architecture search: spaces, one-shot trainers, trainers of single networks, and search over trials.

What the parts tell each other:

- A **space** is a model with choices in it. `Space(model)` reads it: `space.decisions` has a `Decision` for each label
  (`candidates`, `default`, `weights`, `options()`, `count`, `contains(value)`, `sample(random.Random)`), in an order
  in which whatever decides whether another exists comes first. A `Subset` is a decision whose value is a list of
  positions.
- An **architecture** is a dict of plain JSON data, label to value; decisions that do not exist, because another branch
  was taken, have no entry. `space.decide(pick)` asks `pick(decision)` for each decision that exists, in order: the way
  to let a sampler suggest one. `space.allows(architecture)` looks at the constraints, `space.complete(architecture)`
  checks everything and returns it normalised; `key_of(architecture)` is the same text for the same architecture.
- `space.sample(seed)`, `space.enumerate()`, `space.size()`, `space.default()`, `space.mutated(...)` and
  `space.crossed(...)` make architectures.
- `freeze(model, architecture)` is the network that is left: a copy, with no search code in it.
- `Fixed(architecture)` attached by `attach(model, chooser)` lets the space itself go one way, without a copy.
- A **cost** (`flops_of`, `parameters_of`, `latency_of`) gives a number for any architecture of a space:
  `cost.of(architecture)`; and its expectation, with gradients, under the weights of a one-shot trainer.
- A one-shot trainer has `fit()` and `export()`; see `BaseOneShotTrainer`. `weights_over_time(run_dir)` is how what it
  learnt went.
- `draw(architecture)` and `draw_weights(history)` are pictures, as SVG text.
"""

from treadle.nas.classic.proxies import gradient_norm, parameter_count, synflow
from treadle.nas.classic.search import Search
from treadle.nas.costs import Cost, Penalty, flops_of, latency_of, parameters_of
from treadle.nas.fixed import attach, freeze, replace_input_choice, replace_layer_choice
from treadle.nas.oneshot import (
    BaseOneShotTrainer,
    DartsTrainer,
    EnasTrainer,
    Found,
    GumbelDartsTrainer,
    ProxylessTrainer,
    SposTrainer,
    WeightHistory,
    weights_over_time,
)
from treadle.nas.space.cell import Cell, NasBench201Cell
from treadle.nas.space.choosers import Chooser, Fixed
from treadle.nas.space.decisions import Architecture, Decision, Subset
from treadle.nas.space.fixed_modules import PartialChannels
from treadle.nas.space.input_choice import InputChoice
from treadle.nas.space.layer_choice import LayerChoice
from treadle.nas.space.model_space import Constraint, Space, enumerate, sample, size
from treadle.nas.space.parametrized import Built
from treadle.nas.space.repeat import Repeat
from treadle.nas.space.value_choice import (
    Expression,
    ValueChoice,
    apply,
    condition,
    maximum,
    minimum,
    to_float,
    to_int,
    value_of,
)
from treadle.nas.viz import draw, draw_weights
from treadle.search import (
    Evolution,
    Grid,
    Nsga2,
    SearchError,
    Tpe,
    integer,
    log_uniform,
    one_of,
    parallel_coordinates,
    pareto_plot,
    trial_scatter,
    uniform,
)
from treadle.search.assignment import key_of
from treadle.search.recorded_calls import dump_trainer, load_trainer, recorded
from treadle.search.trial.evaluators import BaseTrainer, register_trainer
from treadle.search.trial.reports import (
    PrunedError,
    ReportError,
    current_trial,
    report_final_result,
    report_intermediate_result,
)

__all__ = [
    "Architecture",
    "BaseOneShotTrainer",
    "BaseTrainer",
    "Built",
    "Cell",
    "Chooser",
    "Constraint",
    "Cost",
    "DartsTrainer",
    "Decision",
    "EnasTrainer",
    "Evolution",
    "Expression",
    "Fixed",
    "Found",
    "Grid",
    "GumbelDartsTrainer",
    "InputChoice",
    "LayerChoice",
    "NasBench201Cell",
    "Nsga2",
    "PartialChannels",
    "Penalty",
    "ProxylessTrainer",
    "PrunedError",
    "Repeat",
    "ReportError",
    "Search",
    "SearchError",
    "Space",
    "SposTrainer",
    "Subset",
    "Tpe",
    "ValueChoice",
    "WeightHistory",
    "apply",
    "attach",
    "condition",
    "current_trial",
    "draw",
    "draw_weights",
    "dump_trainer",
    "enumerate",
    "flops_of",
    "freeze",
    "gradient_norm",
    "integer",
    "key_of",
    "latency_of",
    "load_trainer",
    "log_uniform",
    "maximum",
    "minimum",
    "one_of",
    "parallel_coordinates",
    "parameter_count",
    "parameters_of",
    "pareto_plot",
    "recorded",
    "register_trainer",
    "replace_input_choice",
    "replace_layer_choice",
    "report_final_result",
    "report_intermediate_result",
    "sample",
    "size",
    "synflow",
    "to_float",
    "to_int",
    "trial_scatter",
    "uniform",
    "value_of",
    "weights_over_time",
]
