"""Text made into token bins, and what token bins hold: what `treadle data prepare` and `treadle data inspect` do."""

from treadle.data.prepare.bins_from_text import Prepared, prepare
from treadle.data.prepare.inspection import Inspection, inspect_bins

__all__ = ["Inspection", "Prepared", "inspect_bins", "prepare"]
