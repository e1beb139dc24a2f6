"""`treadle config`: a config shown, or two compared."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli._errors import report_errors
from treadle.cli._options import Overrides
from treadle.errors import ConfigError
from treadle.tools.run_config import ADDED, CHANGED, REMOVED, Difference, differences, load_config

if TYPE_CHECKING:
    from rich.text import Text

    from treadle.config import ConfigDict

configs = typer.Typer(no_args_is_help=True)
COLOURS = {ADDED: "green", REMOVED: "red", CHANGED: "yellow"}
SOURCE = "A config file, the folder of a run, or a config of Treadle's such as common/train.py."
Source = Annotated[str, typer.Argument(metavar="CONFIG", help=SOURCE)]


class Format(StrEnum):
    """How a config is shown."""

    YAML = "yaml"
    PY = "py"


@configs.callback()
def about() -> None:
    """Show a config, or compare two.

    \b
    Example:
      treadle config show configs/gpt.py --key optim
      treadle config diff configs/gpt.py runs/first
    """


@configs.command()
def show(
    config: Source,
    overrides: Overrides = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Show only what this key holds.")] = None,
    style: Annotated[Format, typer.Option("--format", help="YAML that loads again, or Python to read.")] = Format.YAML,
    resolve: Annotated[bool, typer.Option("--resolve", help="Put values in the place of interpolations.")] = False,
) -> None:
    """Show a config, with changes if there are any.

    \b
    Example:
      treadle config show configs/gpt.py optim.lr=1e-3 --key optim
      treadle config show runs/first --format py
    """
    with report_errors("config show"):
        from treadle.config import LazyConfig

        made = LazyConfig.apply_overrides(load_config(config), overrides or [])
        made = LazyConfig.resolved(made) if resolve else made
        typer.echo(_text(made, key, style), nl=False)


def _text(config: Any, key: str | None, style: Format) -> str:
    from treadle.config.files import plain
    from treadle.config.nodes import as_node
    from treadle.config.pseudo_code import to_py
    from treadle.config.yaml_format import to_yaml

    parts = key.split(".") if key else []
    holder, value = _found(config, parts)
    if style is Format.PY:
        prefix = "".join(f"{part}." for part in ["cfg", *parts[:-1]])
        return to_py(holder if key is None else {parts[-1]: value}, prefix)
    data: Any = plain(as_node({"value": value}))["value"]
    return to_yaml(data).removesuffix("...\n")


def _found(config: Any, parts: list[str]) -> tuple[Any, Any]:
    """Return what `parts` lead to, and what holds it; nothing is resolved on the way."""
    from omegaconf import DictConfig, ListConfig

    from treadle.config.nodes import location, near_keys

    holder, found = None, config
    for part in parts:
        holder, index = found, int(part) if isinstance(found, ListConfig) and part.isdecimal() else part
        known = isinstance(found, DictConfig) and index in found
        if not known and not (isinstance(index, int) and index < len(found)):
            near = near_keys(found, part) if isinstance(found, DictConfig) else "; it holds no keys"
            raise ConfigError(f"{location(found) if hasattr(found, '_get_root') else part} has no key {part!r}{near}")
        found = holder._get_node(index)
    return (config if holder is None else holder), found


@configs.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=SOURCE)],
    second: Annotated[str, typer.Argument(metavar="B", help="What to compare it with; likewise.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with status 1 if they differ.")] = False,
) -> None:
    """Say in what config B differs from config A: added, removed and changed keys.

    \b
    Example:
      treadle config diff configs/gpt.py configs/gpt_wide.py
      treadle config diff runs/first runs/second
    """
    with report_errors("config diff"):
        found = differences(_plain(load_config(first)), _plain(load_config(second)))
        _show(first, second, found)
        if found and exit_code:
            raise typer.Exit(1)


def _plain(config: "ConfigDict") -> Any:
    from treadle.config.files import plain

    return plain(config)


def _show(first: str, second: str, found: list[Difference]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not found:
        console.print(f"{first} and {second} say the same", markup=False)
        return
    for difference in found:
        console.print(_lines(difference, console.width))
    counts = [f"{sum(one.kind == kind for one in found)} {kind}" for kind in (CHANGED, ADDED, REMOVED)]
    console.print(f"{', '.join(counts)}, from {first} to {second}", markup=False)


def _lines(difference: Difference, width: int) -> "Text":
    """Return a difference in one line if it fits, otherwise its values below the key."""
    from rich.text import Text

    values = [value for value in (difference.before, difference.after) if value]
    head = f"{difference.kind:<8} {difference.key}"
    line = f"{head}  {' -> '.join(values)}"
    if len(line) > width:
        marks = {ADDED: "+", REMOVED: "-"}.get(difference.kind, "-+")
        line = "\n".join([head, *(f"    {mark} {value}" for mark, value in zip(marks, values, strict=True))])
    text = Text(line)
    text.stylize(COLOURS[difference.kind], 0, 8)
    return text
