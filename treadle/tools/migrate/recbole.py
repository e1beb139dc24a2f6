"""Programs and settings for RecBole."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.config.yaml_format import no_yaml
from treadle.errors import ConfigError
from treadle.tools.migrate.imports import Rewriter, read_import_map
from treadle.tools.migrate.migration import Note
from treadle.tools.migrate.source import Source

ROOTS = ("recbole",)
OLD = {
    *("training_neg_sample_num", "neg_sampling", "eval_setting", "split_ratio", "group_by_user", "leave_one_num"),
    *("min_user_inter_num", "max_user_inter_num", "min_item_inter_num", "max_item_inter_num"),
    *("lowest_val", "highest_val"),
}
"""Settings of versions before 1.0, and 1.0 itself, that were renamed."""
ORDERS = ("RO", "TO")
IDLE = {"real_time_process": "data is always processed before training"}
"""Settings that are left out."""
GONE = {
    "nproc": "start the program with torchrun, or pass nproc to run()",
    "world_size": "start the program with torchrun",
    "benchmark_filename": "it works as in RecBole only where docs/recsys-data.md says so",
}


def migrate(source: Source) -> None:
    """Turn a program for RecBole into one for Treadle."""
    rewriter = Rewriter(source, read_import_map(), ROOTS)
    rewriter.run()
    for node in source.find(ast.Call):
        full = rewriter.full_name(node.func) or ""
        named = {keyword.arg for keyword in node.keywords}
        if full.endswith(".Config") and "argv" not in named:
            text = "RecBole's Config reads the command line by itself; here pass argv=sys.argv[1:] if it should"
            source.note(node, text, left=False)
        elif ast.unparse(node.func) == "torch.load":
            source.note(node, "a .pth of RecBole is a pickle: 'treadle import' reads its weights without running it")
    rewriter.finish()


def migrate_settings(text: str, path: Path) -> tuple[str, list[Note]]:
    """Return the settings in a YAML file with those of old versions written as they are now.

    Raises:
        ConfigError: It is no YAML with settings.
    """
    import yaml  # type: ignore[import-untyped]

    from treadle.recsys.config.defaults import framework_defaults

    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(no_yaml(error, str(path))) from error
    if not isinstance(tree, yaml.MappingNode):
        raise ConfigError(f"{path} holds no settings by name")
    entries = {key.value: (key, value) for key, value in tree.value}
    if not entries.keys() & (OLD | GONE.keys() | IDLE.keys() | framework_defaults().keys()):
        raise ConfigError(f"{path} holds none of RecBole's settings, such as train_batch_size or eval_args")
    notes = list(_tags(tree))
    edits: list[tuple[int, int, str]] = []
    values = {name: _plain(value) for name, (_, value) in entries.items()}
    for names, lines in _renewed(values):
        first, *others = [name for name in names if name in entries]
        comment = _comment(text, entries[first][1])
        edits.append((*_entry_lines(text, *entries[first]), "".join(f"{line}\n" for line in [*comment, *lines])))
        edits += [(*_entry_lines(text, *entries[name]), "") for name in others]
    for name in sorted(entries.keys() & IDLE.keys()):
        edits.append((*_entry_lines(text, *entries[name]), ""))
        notes.append(Note(entries[name][0].start_mark.line + 1, f"{name} is left out: {IDLE[name]}", left=False))
    notes += [
        Note(key.start_mark.line + 1, f"{name}: {GONE[name]}") for name, (key, _) in entries.items() if name in GONE
    ]
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text, notes


def _entry_lines(text: str, key: Any, value: Any) -> tuple[int, int]:
    """Return where the lines of an entry begin and end; blank lines and comments behind it stay."""
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    body = text[: max(value.end_mark.index, key.end_mark.index)].rstrip()
    line = text[body.rfind("\n") + 1 : len(body)]
    while line.lstrip().startswith("#"):
        body = body[: body.rfind("\n")].rstrip()
        line = body[body.rfind("\n") + 1 :]
    end = text.find("\n", len(body))
    return start, len(text) if end < 0 else end + 1


def _comment(text: str, value: Any) -> list[str]:
    """Return the comment behind a value on its line, to stand above what comes in its place."""
    end = value.end_mark.index
    rest = text[end : text.find("\n", end) if "\n" in text[end:] else len(text)].strip()
    return [rest] if rest.startswith("#") and not isinstance(value.value, list) else []


def _plain(node: Any) -> Any:
    import yaml

    try:
        return yaml.SafeLoader("").construct_object(node, deep=True)
    except yaml.YAMLError:
        return None


def _tags(tree: Any) -> Iterator[Note]:
    """Yield what in a YAML file would have to run code, at any depth."""
    if str(tree.tag).startswith("tag:yaml.org,2002:python/"):
        tag = tree.tag.partition(",2002:")[2]
        yield Note(tree.start_mark.line + 1, f"{tag} runs code when it is read; write the value itself")
    for child in tree.value if isinstance(tree.value, list) else ():
        for node in child if isinstance(child, tuple) else (child,):
            yield from _tags(node)


def _renewed(values: dict[str, Any]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield settings of old versions, with the lines to write in their place."""
    if "training_neg_sample_num" in values:
        yield ["training_neg_sample_num"], _negatives("uniform", int(values["training_neg_sample_num"] or 0))
    if "neg_sampling" in values:
        kinds = values["neg_sampling"] or {}
        name, count = next(iter(kinds.items()), ("uniform", 0))
        yield ["neg_sampling"], _negatives(str(name), int(count or 0))
    if "eval_setting" in values:
        used = ["eval_setting", *(name for name in ("split_ratio", "group_by_user", "leave_one_num") if name in values)]
        yield used, _evaluation(values)
    yield from _intervals(values)


def _negatives(distribution: str, count: int) -> list[str]:
    if not count:
        return ["train_neg_sample_args: ~"]
    return ["train_neg_sample_args:", f"  distribution: {distribution}", f"  sample_num: {count}"]


def _evaluation(values: dict[str, Any]) -> list[str]:
    """Return what `RO_RS,full` and the settings around it say, as `eval_args` says it."""
    words = [word.strip() for word in str(values["eval_setting"]).split(",")]
    order, _, kind = words[0].partition("_")
    if kind == "LS":
        split = "{LS: valid_and_test}"
    else:
        split = f"{{RS: {values.get('split_ratio') or [0.8, 0.1, 0.1]}}}"
    group = "user" if values.get("group_by_user", True) else "none"
    mode = words[1] if len(words) > 1 else "full"
    lines = [f"  split: {split}", f"  group_by: {group}", f"  order: {order if order in ORDERS else 'RO'}"]
    return ["eval_args:", *lines, f"  mode: {mode}"]


def _intervals(values: dict[str, Any]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield bounds of two settings each as one interval."""
    for kind in ("user", "item"):
        names = [f"{end}_{kind}_inter_num" for end in ("min", "max")]
        if any(name in values for name in names):
            low, high = (values.get(name) for name in names)
            text = f'{kind}_inter_num_interval: "{_interval(low or None, high or None)}"'
            yield [name for name in names if name in values], [text]
    bounds = {name: values[name] for name in ("lowest_val", "highest_val") if values.get(name)}
    if bounds:
        fields = dict.fromkeys(field for given in bounds.values() for field in given)
        lines = [
            f'  {field}: "{_interval(*(bounds.get(name, {}).get(field) for name in ("lowest_val", "highest_val")))}"'
            for field in fields
        ]
        yield list(bounds), ["val_interval:", *lines]


def _interval(low: Any, high: Any) -> str:
    """Return an interval in the notation of RecBole.

    >>> _interval(5, None), _interval(None, 3)
    ('[5,inf)', '(-inf,3]')
    """
    return f"{'(-inf' if low is None else f'[{low}'},{'inf)' if high is None else f'{high}]'}"
