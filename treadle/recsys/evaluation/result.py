"""What an evaluation found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from treadle.errors import UnknownMetricError, did_you_mean
from treadle.runs.html_table import html_table


@dataclass(frozen=True)
class PerUser:
    """The value of each metric for each user.

    Attributes:
        users: The users, rising.
        values: The values of each metric, in the order of `users`; nan where a metric leaves a user out.
        split: A fingerprint of each thing that makes the split they were evaluated on; empty where it is not known.
    """

    users: Tensor
    values: dict[str, Tensor]
    split: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        key = name.lower()
        if key not in self.values:
            known = list(self.values)
            raise UnknownMetricError(
                f"there are no values of {name!r} by user; there are those of {known}{did_you_mean(key, known)}"
            )
        return self.values[key]


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics of an evaluation, as they are: nothing is rounded until somebody asks.

    Attributes:
        metrics: The value of each metric, by names such as `recall@10`.
        users: How many users were ranked for; 0 where rows are evaluated.
        groups: The same metrics by division and group, such as `groups["activity"]["0-4"]["recall@10"]`; a group
            without users is left out.
        group_users: How many users each group has.
        per_user: The values of single users, if they were kept.
        decimals: To how many decimals `rounded` rounds.
    """

    metrics: dict[str, float]
    users: int = 0
    groups: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    group_users: dict[str, dict[str, int]] = field(default_factory=dict)
    per_user: PerUser | None = None
    decimals: int = 4

    def __getitem__(self, name: str) -> float:
        key = name.lower()
        if key not in self.metrics:
            known = list(self.metrics)
            raise UnknownMetricError(f"{name!r} was not calculated; there are {known}{did_you_mean(key, known)}")
        return self.metrics[key]

    def rounded(self, decimals: int | None = None) -> dict[str, float]:
        """Return the metrics rounded for a reader; compare models by `metrics`."""
        places = self.decimals if decimals is None else decimals
        return {name: round(value, places) for name, value in self.metrics.items()}

    def _repr_html_(self) -> str:
        """Show the metrics, and those of every group, as a table in a notebook."""
        rows = [["all", self.users or None, *self.rounded().values()]]
        for name, groups in self.groups.items():
            for label, values in groups.items():
                users = self.group_users[name][label]
                rows.append([f"{name} {label}", users, *(round(values[key], self.decimals) for key in self.metrics)])
        return html_table(["users in", "users", *self.metrics], rows)

    def __str__(self) -> str:
        lines = [_line("all", self.users, self.rounded())]
        for name, groups in self.groups.items():
            for label, values in groups.items():
                rounded = {key: round(value, self.decimals) for key, value in values.items()}
                lines.append(_line(f"{name} {label}", self.group_users[name][label], rounded))
        return "\n".join(lines)


def joined(parts: Sequence[tuple[Tensor, Tensor]], keys: Sequence[str], split: Mapping[str, str]) -> PerUser:
    """Return the values of parts, each users and `[metrics, users]`, as one table in the order of users."""
    users = torch.cat([users for users, _ in parts])
    values = torch.cat([values for _, values in parts], dim=1)
    order = users.argsort()
    return PerUser(users[order], dict(zip(keys, values[:, order].unbind(), strict=True)), split)


def _line(title: str, users: int, values: dict[str, float]) -> str:
    count = f" ({users} users)" if users else ""
    return f"{title}{count}: " + "    ".join(f"{name} : {value}" for name, value in values.items())
