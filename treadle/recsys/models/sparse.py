"""Sparse matrices of torch."""

import warnings

import torch
from torch import Tensor


def csr_matrix(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a matrix in CSR form, whose parts are known to be right and are not checked.

    >>> csr_matrix(torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([5.0]), (1, 2)).to_dense().tolist()
    [[0.0, 5.0]]
    """
    with warnings.catch_warnings():
        # torch says once in each process that the form is new; what is used of it here is tested.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)
