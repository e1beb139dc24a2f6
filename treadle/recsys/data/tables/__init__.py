"""Tables on their way to a data set: reading, filtering, numbering and filling, column by column."""
