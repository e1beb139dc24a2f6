"""What can go wrong with a search as a whole."""

from treadle.errors import TreadleError


class SearchError(TreadleError):
    """A search cannot go on: its store holds something else, or its trials keep failing."""
