"""Sources: data that does not fit into memory, drawn in an exact order from wherever it lies.

`TokenBins` maps tokens from files, see `treadle.data.sources.token_bins` for the format. `JsonLines`, `Parquet`,
`TarShards`, `ImageFolder` and `HuggingFace` read files of others, and a `Mixture` draws from several by weight.
`HuggingFaceStream` and `MixtureStream` are for what can only be read on. `PackedDocuments` and `PackedStream` pack
documents into rows of one length.
"""

from treadle.data.sources.hugging_face import HuggingFace
from treadle.data.sources.images import ImageFolder
from treadle.data.sources.json_lines import JsonLines
from treadle.data.sources.mixture import Mixture
from treadle.data.sources.packed import FOR_TRANSFORMERS, NEXT_TOKEN, PackedDocuments, PackedFields
from treadle.data.sources.packed_stream import PackedStream
from treadle.data.sources.parquet import Parquet
from treadle.data.sources.records import CorruptRecordError
from treadle.data.sources.source import IndexedSource, Source
from treadle.data.sources.streamed import HuggingFaceStream, MixtureStream, StreamedSource
from treadle.data.sources.tar_shards import TarShards
from treadle.data.sources.token_bins import TokenBin, TokenBinHeader, TokenBins, TokenBinWriter, write_token_bin

__all__ = [
    "FOR_TRANSFORMERS",
    "NEXT_TOKEN",
    "CorruptRecordError",
    "HuggingFace",
    "HuggingFaceStream",
    "ImageFolder",
    "IndexedSource",
    "JsonLines",
    "Mixture",
    "MixtureStream",
    "PackedDocuments",
    "PackedFields",
    "PackedStream",
    "Parquet",
    "Source",
    "StreamedSource",
    "TarShards",
    "TokenBin",
    "TokenBinHeader",
    "TokenBinWriter",
    "TokenBins",
    "write_token_bin",
]
