"""Where modules were before: paths that programs import, and that the configs and searches of earlier runs name."""

from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

FORMER: dict[str, str] = {
    "checkpoint.foreign": "checkpoint.importers.systems",
    "checkpoint.storage": "files.storage",
    "data.slicing": "data.loaders",
    "demos": "tools.demo",
    "demos.digits": "tools.demo.digits",
    "demos.language_model": "tools.demo.language_model",
    "demos.recommender": "tools.demo.recommender",
    "demos.search": "tools.demo.search",
    "doctor": "tools.doctor",
    "engine.peaks": "engine.hooks.throughput",
    "freezing": "optim.freezing",
    "fused_loss": "ops.linear_cross_entropy",
    "loss_items": "ops.loss_items",
    "lr_finder": "optim.lr_finder",
    "lr_scaling": "optim.lr_scaling",
    "migration": "tools.migrate",
    "nas.attaching": "nas.fixed",
    "nas.built": "nas.space.parametrized",
    "nas.cell": "nas.space.cell",
    "nas.choice": "nas.space.choice",
    "nas.choosing": "nas.space.choosers",
    "nas.conditions": "nas.space.decisions",
    "nas.constraints": "nas.space.model_space",
    "nas.costs.scopes": "nas.costs.cost",
    "nas.costs.trace_space": "nas.costs.trace",
    "nas.counting": "nas.space.model_space",
    "nas.decisions": "nas.space.decisions",
    "nas.drawing": "nas.viz",
    "nas.drawing.architecture": "nas.viz.architecture",
    "nas.drawing.cells": "nas.viz.architecture",
    "nas.drawing.graphs": "nas.viz.architecture",
    "nas.drawing.svg": "search.plots.svg",
    "nas.drawing.weights": "nas.viz.weight_history",
    "nas.expressions": "nas.space.value_choice",
    "nas.freezing": "nas.fixed",
    "nas.frozen": "nas.space.fixed_modules",
    "nas.inheritance": "nas.classic.network_space",
    "nas.input_choice": "nas.space.input_choice",
    "nas.joining": "nas.space.fixed_modules",
    "nas.labelled": "nas.space.decisions",
    "nas.layer_choice": "nas.space.layer_choice",
    "nas.mixing": "nas.space.weighted_sum",
    "nas.nasbench201_cell": "nas.space.cell",
    "nas.network_space": "nas.classic.network_space",
    "nas.oneshot._core": "nas.oneshot.core",
    "nas.oneshot._face": "nas.oneshot.trainer",
    "nas.oneshot._paths": "nas.oneshot.single_path",
    "nas.oneshot._weighing": "nas.oneshot.differentiable",
    "nas.oneshot._weighing_face": "nas.oneshot.differentiable",
    "nas.oneshot.base": "nas.oneshot.trainer",
    "nas.oneshot.exporting": "nas.oneshot.trainer",
    "nas.oneshot.mixed": "nas.oneshot.mixed_op",
    "nas.oneshot.numbers": "nas.oneshot.single_path",
    "nas.oneshot.option_names": "nas.oneshot.trainer",
    "nas.oneshot.recalibration": "nas.oneshot.spos",
    "nas.oneshot.streams": "nas.oneshot.core",
    "nas.oneshot.two_paths": "nas.oneshot.proxyless",
    "nas.oneshot.unrolled": "nas.oneshot.differentiable",
    "nas.oneshot.weights": "nas.oneshot.supernet",
    "nas.partial_channels": "nas.space.fixed_modules",
    "nas.proxies": "nas.classic.proxies",
    "nas.ranking": "nas.space.choice",
    "nas.repeat": "nas.space.repeat",
    "nas.replacing": "nas.fixed",
    "nas.search": "nas.classic.search",
    "nas.sharing": "nas.space.weight_sharing",
    "nas.spaces": "nas.zoo",
    "nas.spaces.darts": "nas.zoo.darts",
    "nas.spaces.nasbench201": "nas.zoo.nasbench201",
    "nas.spaces.operations": "nas.zoo.operations",
    "nas.spaces.proxyless": "nas.zoo.proxyless",
    "nas.undecided": "nas.space.decisions",
    "nas.weight_history": "nas.viz.weight_history",
    "optimizers": "optim.param_groups",
    "placeholders": "schedules.placeholders",
    "recsys.case_study": "recsys.serve.case_study",
    "recsys.compat.datasets": "recsys.compat.data",
    "recsys.compat.plain": "recsys.compat.functions",
    "recsys.compat.transforms": "recsys.compat.data",
    "recsys.compat.tuning": "recsys.compat.hyper_tuning",
    "recsys.dataset_sequential": "recsys.data.sequential_dataset",
    "recsys.evaluation.collector": "recsys.evaluation.evaluator",
    "recsys.group_panels": "recsys.evaluation.group_panels",
    "recsys.loading": "recsys.data.dataloader",
    "recsys.sampling": "recsys.data.sampling",
    "recsys.sampling.evaluation_negatives": "recsys.data.sampling.evaluation_negatives",
    "recsys.sampling.neighbours": "recsys.data.sampling.neighbours",
    "recsys.search_space": "recsys.tune.space",
    "recsys.searching": "recsys.tune.search",
    "recsys.trainers.own_logs": "recsys.trainers.loggers",
    "recsys.trainers.passes": "recsys.trainers.abstract_trainer",
    "report": "tools.report",
    "run_config": "loop.run_config",
    "run_panels": "runs.panels",
    "run_place": "runs.place",
    "search.domains": "search.space.domains",
    "search.evaluators": "search.trial.evaluators",
    "search.extension": "search.space.extension",
    "search.recorded_values": "search.encoding",
    "search.records": "search.recorded_calls",
    "search.reports": "search.trial.reports",
    "steps": "lightning",
    "timm_schedule": "schedules.timm",
    "verification": "tools.reproduce",
}
"""The former name of a module, and the one that it has, both below the package."""


class _Loader:
    """Gives what a name stands for now, so that its classes are the same by both names."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself; for a package, one that has its names, and in which no file is found again."""
        now = import_module(spec.loader_state)
        self._spec = now.__spec__
        if not hasattr(now, "__path__"):
            return now
        former = ModuleType(spec.name, now.__doc__)
        former.__path__ = []
        former.__getattr__ = partial(getattr, now)  # type: ignore[method-assign]
        self._spec = spec
        return former

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has been run, and keeps the spec of its own name."""
        module.__spec__ = self._spec


def find_former(name: str) -> ModuleSpec | None:
    """Return how a module that has another name now is loaded, or one below it; None if there was none of this name.

    >>> find_former("treadle.report.page").loader_state
    'treadle.tools.report.page'
    """
    former, below = name.removeprefix("treadle."), ""
    while former not in FORMER:
        former, _, last = former.rpartition(".")
        if not former:
            return None
        below = f".{last}{below}"
    now = f"treadle.{FORMER[former]}{below}"
    return ModuleSpec(name, _Loader(), loader_state=now) if find_spec(now) else None  # type: ignore[arg-type]
