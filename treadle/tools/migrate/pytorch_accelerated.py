"""Programs for pytorch-accelerated: another import line, and what its subclasses do with Accelerate."""

import ast

from treadle.tools.migrate.imports import Home, ImportMap, Rewriter, read_import_map
from treadle.tools.migrate.source import Source

ROOTS = ("pytorch_accelerated",)
METHODS = {
    "_create_accelerator": "it is not called any more: for mixed precision pass precision='bf16' or 'fp16' to the "
    "trainer",
    "_prepare_model_optimizer_and_dataloaders": "it is not called any more: override _prepare_model_and_optimizer or "
    "_prepare_dataloaders",
}
"""Methods that subclasses override and that have no counterpart of the same name."""
VARIABLES = {"PT_ACC_LIMIT_BATCHES": "TREADLE_LIMIT_BATCHES"}


def migrate(source: Source) -> None:
    """Turn a program for pytorch-accelerated into one for Treadle."""
    known = read_import_map()
    table = ImportMap(
        {**known.homes, ("accelerate", "notebook_launcher"): Home("treadle.parallel", "notebook_launcher")}
    )
    table.reasons = {**known.reasons, "Accelerator": "arguments of treadle.Trainer, such as precision= and device="}
    rewriter = Rewriter(source, table, (*ROOTS, "accelerate"), fallback=lambda full: _elsewhere(table, full))
    rewriter.run()
    for node in source.find(ast.FunctionDef):
        if node.name in METHODS and isinstance(source.parent(node), ast.ClassDef):
            source.note(node, f"{node.name}: {METHODS[node.name]}")
    for node in source.find(ast.Constant):
        if node.value in VARIABLES:
            source.replace(node, repr(VARIABLES[node.value]))
    _tell_of_calls(source, rewriter)
    rewriter.finish()


def _elsewhere(table: ImportMap, full: str) -> Home | None:
    """Return where a name is to be had that was imported from a module that had only imported it itself.

    >>> _elsewhere(read_import_map(), "pytorch_accelerated.trainer.TrainerRunConfig")
    Home(module='treadle.loop.run_config', name='TrainerRunConfig')
    """
    module, _, name = full.rpartition(".")
    homes = [home for (other, known), home in table.homes.items() if known == name and other.startswith(ROOTS)]
    # Of two rows for one thing, one may go through the package.
    return homes[0] if module.startswith(ROOTS) and homes else None


def _tell_of_calls(source: Source, rewriter: Rewriter) -> None:
    kinds = {name for name, full in rewriter.found.items() if full.endswith(".Trainer")}
    kinds |= {node.name for node in source.find(ast.ClassDef) if {ast.unparse(base) for base in node.bases} & kinds}
    for node in source.find(ast.Call):
        called = ast.unparse(node.func)
        if called in kinds and not any(keyword.arg == "seed" for keyword in node.keywords):
            text = "the order of the data was always that of seed 42; here it is that of seed=, or of torch's generator"
            source.note(node, text, left=False)
        elif called.endswith("torch.load") or called == "load":
            source.note(node, "torch.load(path, weights_only=True) reads a .pt that save_checkpoint wrote", left=False)
