"""Tables on their way to a data set: reading, filtering, numbering and filling, column by column."""

from treadle.recsys.data.tables.columns import Column, Table

__all__ = ["Column", "Table"]
