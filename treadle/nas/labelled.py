"""The names of what is to be decided."""

from torch import nn

from treadle.errors import ConfigError


class Labelled:
    """Something to be decided: called by its label or, where it has none, after the place where it is used."""

    label: str | None
    _path: str | None = None

    @property
    def label_now(self) -> str:
        """The label in force; empty if it has none, and nobody has looked where it is used."""
        return self.label or self._path or ""

    @property
    def key(self) -> str:
        """The label in force.

        Raises:
            ConfigError: It has none, and nobody has looked where it is used.
        """
        if not self.label_now:
            owner = type(self).__name__ if isinstance(self, nn.Module) else self
            raise ConfigError(
                f"{owner!r} has no label yet; give it one, label=..., or read the model that it is used in first: "
                "nas.Space(model)"
            )
        return self.label_now

    @property
    def placed(self) -> bool:
        """Whether somebody has looked where it is used."""
        return self._path is not None

    def located(self, path: str) -> None:
        """Take note of where it is used: its label, unless it was given one."""
        self._path = path
