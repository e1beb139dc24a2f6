"""The settings of a run: what comes with Treadle, and over it files, a dict and the command line."""

from treadle.recsys.config.configurator import Config

__all__ = ["Config"]
