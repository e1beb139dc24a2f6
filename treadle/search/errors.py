"""What can go wrong with a search as a whole."""

from treadle.errors import TreadleError


class SearchError(TreadleError):
    """A search cannot go on: its store holds something else, or its trials keep failing."""


class StopSearchError(SearchError):
    """Raised in a trial to end the search, not the trial: it has neither a result nor failed, and is run again.

    For what is wrong with the search as a whole, such as data that are not those of the trials before.
    """
