"""Files for other systems, turned into files for Treadle."""

from treadle.migration.migrated import Migration, Note
from treadle.migration.migrating import migrate

__all__ = ["Migration", "Note", "migrate"]
