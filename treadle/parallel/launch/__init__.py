"""Starting the processes of a run: from a notebook, by torchrun's agent, under SLURM, on Ray."""
