"""The `treadle` command: one module for each group of commands; `app` is all of them."""

from treadle.cli.application import app

__all__ = ["app"]
