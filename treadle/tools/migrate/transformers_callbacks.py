"""Callbacks of transformers: their events, and what they read of the state of a run."""

import ast

from treadle.tools.migrate.source import Source

EVENTS = {
    "on_init_end": "on_init_end",
    "on_train_begin": "on_training_run_start",
    "on_train_end": "on_training_run_end",
    "on_epoch_begin": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
    "on_step_begin": "on_update_start",
    "on_step_end": "on_update_end",
    "on_optimizer_step": "on_update_end",
    "on_substep_end": "on_train_step_end",
    "on_log": "on_log",
    "on_evaluate": "on_eval_epoch_end",
    "on_prediction_step": "on_eval_step_end",
}
"""Their events, and ours for the same moments."""
WITHOUT = {
    "on_pre_optimizer_step": "override apply_gradients of a Trainer",
    "on_save": "there is no event; checkpoints are in the run folder",
    "on_predict": "what follows predict(...) in the program",
    "on_push_begin": "nothing is pushed",
}
GIVEN = {
    "model": "trainer.model",
    "optimizer": "trainer.optimizer",
    "lr_scheduler": "trainer.scheduler",
    "logs": "scalars",
}
"""What their events are given by name, and where it is."""
STATE = {"global_step": "trainer.progress.step", "epoch": "trainer.progress.epoch"}
STOP = "should_training_stop"


def change_callback(source: Source, node: ast.ClassDef) -> None:
    """Rename the events of a callback, and change what they read."""
    renamed: set[str] = set()
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        if method.name in WITHOUT:
            source.note(method, f"{method.name} has no counterpart; instead: {WITHOUT[method.name]}")
        elif method.name in EVENTS:
            if EVENTS[method.name] in renamed:
                source.note(
                    method, f"{method.name} is {EVENTS[method.name]} here, which is there already; join the two"
                )
                continue
            renamed.add(EVENTS[method.name])
            _change_event(source, node.name, method)


def _change_event(source: Source, owner: str, method: ast.FunctionDef) -> None:
    names = [one.arg for one in (*method.args.args, *method.args.kwonlyargs)]
    if len(names) < 4:
        source.note(method, f"{method.name}: write its arguments as (self, trainer, **kwargs)")
        return
    args, state, control = names[1:4]
    start = source.place(method.lineno, method.col_offset)
    opening = source.text.index("(", start)
    first = method.body[0]
    closing = source.text.rindex(":", opening, source.span(first)[0])
    log = method.name == "on_log"
    source.replace_span(
        (start, closing), f"def {EVENTS[method.name]}(self, trainer, {'scalars=None, ' if log else ''}**kwargs)"
    )
    told: set[str] = set()
    for inner in ast.walk(ast.Module(method.body, [])):
        if isinstance(inner, ast.Assign) and _is(inner.targets[0], control, STOP):
            source.replace(inner, f'trainer.request_stop("{owner} asked for it", for_good=True)')
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            _change_attribute(source, inner, args, state, control)
        elif isinstance(inner, ast.Return) and isinstance(inner.value, ast.Name) and inner.value.id == control:
            source.replace(inner, "return")
        elif isinstance(inner, ast.Name) and inner.id in names[4:]:
            if inner.id in GIVEN:
                source.replace(inner, GIVEN[inner.id])
            elif inner.id not in told:
                told.add(inner.id)
                source.note(inner, f"{inner.id}: trainer.run_history has every metric by name")
    if log:
        source.note(method, "scalars have our names: the loss is train_loss, its rate lr", left=False)


def _is(node: ast.expr, owner: str, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
    )


def _change_attribute(source: Source, node: ast.Attribute, args: str, state: str, control: str) -> None:
    assert isinstance(node.value, ast.Name)
    if node.value.id == state and node.attr in STATE:
        source.replace(node, STATE[node.attr])
        if node.attr == "epoch":
            source.note(node, "trainer.progress.epoch counts whole epochs, those that are done", left=False)
    elif node.value.id == control and node.attr != STOP:
        source.note(node, f"{node.attr}: arguments of train say when: log_every=, eval_every=, save_every=")
    elif node.value.id in (args, state):
        source.note(node, f"{ast.unparse(node)}: trainer.settings has the options, trainer.run_history the metrics")
