"""Callbacks ready to use."""

from typing import Any

from treadle.callback import TrainerCallback

DEFAULT_CALLBACKS: tuple[Any, ...] = ()

__all__ = ["DEFAULT_CALLBACKS", "TrainerCallback"]
