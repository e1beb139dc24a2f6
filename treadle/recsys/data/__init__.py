"""From files to batches: tables, data sets, splits, negative sampling and data loaders."""
