"""The files of a checkpoint: tensors, trees of plain data, manifests, shards."""
