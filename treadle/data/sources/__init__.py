"""Sources: data that does not fit into memory, drawn in an exact order from wherever it lies.

`TokenBins` maps tokens from files, see `treadle.data.sources.token_bins` for the format.
"""

from treadle.data.sources.source import IndexedSource, Source
from treadle.data.sources.token_bins import TokenBin, TokenBinHeader, TokenBins, TokenBinWriter, write_token_bin

__all__ = [
    "IndexedSource",
    "Source",
    "TokenBin",
    "TokenBinHeader",
    "TokenBinWriter",
    "TokenBins",
    "write_token_bin",
]
