"""Files for other systems, turned into files for Treadle."""

from treadle.tools.migrate.dispatch import migrate
from treadle.tools.migrate.migration import Migration, Note

__all__ = ["Migration", "Note", "migrate"]
