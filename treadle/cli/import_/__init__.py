"""`treadle import`: files of other systems, as checkpoints and architectures for Treadle."""
