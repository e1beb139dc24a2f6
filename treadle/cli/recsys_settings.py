"""Further options of `treadle recsys`, which are settings: what can be judged of them before any data is read."""

from collections.abc import Iterator

import typer

from treadle.errors import ConfigError, did_you_mean

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Of commands whose further options are settings of the recommender door."""


def given_settings(ctx: typer.Context) -> dict[str, str]:
    """Return the settings that stand on a command line.

    A name that no setting of Treadle's has may be one that the user's own model reads, which shows only when all is
    built. But one that is nearly an option of the command itself, and one that was not given, is a slip.

    Raises:
        ConfigError: An argument is no setting, or nearly an option.
    """
    from treadle.recsys.config_defaults import all_known_names
    from treadle.recsys.config_values import parse_arguments

    left_out = list(_left_out(ctx))
    for argument in ctx.args:
        name = argument.partition("=")[0].removeprefix("--")
        near = did_you_mean(f"--{name}", left_out)
        if argument.startswith("--") and near and name not in all_known_names():
            raise ConfigError(
                f"--{name} on the command line is no option{near} A setting of your own model that is called so goes "
                "into a file, by --config-file"
            )
    return parse_arguments(ctx.args)


def _left_out(ctx: typer.Context) -> Iterator[str]:
    """Yield the options of a command that were not given; model and data set are settings themselves."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        given = source is not None and source.name == "COMMANDLINE"
        if not given and parameter.name not in ("model", "dataset"):
            yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--"))
