"""What a search over trials found: plain data, which a notebook shows as a table."""

from typing import Any

from treadle.html_table import html_table


class SearchResults(dict[str, Any]):
    """The results of a search, as `Search.results` describes them; a dict like any other, but for notebooks."""

    def _repr_html_(self) -> str:
        """Show the trials as a table in a notebook: those that no other is better than first."""
        front = set(self["pareto"])
        ranked = sorted(self["trials"], key=lambda trial: (trial["number"] not in front, trial["number"]))
        objectives = list(self["objectives"])
        names = list(dict.fromkeys(name for trial in ranked for name in trial["parameters"]))
        rows = [
            [
                *(trial["number"], trial["state"]),
                *((trial["values"] or {}).get(name) for name in objectives),
                *(trial["parameters"].get(name) for name in names),
            ]
            for trial in ranked
        ]
        best = f"{self['name']}: {len(ranked)} trials by {self['strategy']}"
        return html_table(["trial", "state", *objectives, *names], rows, best)
