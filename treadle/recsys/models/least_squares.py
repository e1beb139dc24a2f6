"""Factors of a matrix of what was used, by alternating least squares: one side is solved for, the other one given."""

import torch
from torch import Tensor

from treadle.recsys.models.graph import Rows, multiply
from treadle.recsys.models.histories import csr_matrix

CELLS = {"cpu": 1 << 18, "cuda": 1 << 27}
"""How many numbers a block of rows has: as many as lie near a CPU, and as keep a GPU busy."""
GROWTH = 1.15
"""How much longer than its shortest row the longest of a block may be: shorter ones are filled up."""


class LeastSquares:
    """The factors of all rows, where those of columns are given: a ridge regression for each row.

    For a row u with the columns I(u) it is the least of `sum over i in I(u) of (1 - w v_i)^2 + unobserved * sum over
    all i of (w v_i)^2 + penalty_u * |w|^2`. Everything is calculated in the eigenvectors of the Gramian of the columns,
    in which what all rows have in common is a diagonal: for the conjugate gradients that is a good preconditioner, and
    for the exact solution of a row with few columns a way to a system of its columns alone.

    Args:
        rows: The columns of each row.
        penalties: The penalty on each row.
        unobserved: The weight of all columns, used or not.
    """

    def __init__(self, rows: Rows, penalties: Tensor, unobserved: float) -> None:
        self.rows, self.penalties, self.unobserved = rows, penalties, unobserved
        self.ones = torch.ones(len(rows.neighbours), device=penalties.device)

    def solve(self, columns: Tensor, before: Tensor, steps: int | None) -> Tensor:
        """Return the factors of all rows, `[rows, size]`.

        Args:
            columns: The factors of columns, `[columns, size]`.
            before: What the factors of the rows were, from where conjugate gradients begin.
            steps: How many steps of conjugate gradients; None solves exactly.
        """
        values, turns = torch.linalg.eigh((columns.T @ columns).double())
        turn = turns.to(columns.dtype)
        shared = self.unobserved * values.clamp(min=0).to(columns.dtype)
        turned = columns @ turn
        if steps is None:
            found = self._exact(turned, shared, torch.zeros_like(before))
        else:
            found = self._conjugate_gradients(turned, shared + self.penalties.unsqueeze(1), before @ turn, steps)
        solved: Tensor = found @ turn.T
        return solved

    # Conjugate gradients, of all rows at once -----------------------------------------------------------------

    def _conjugate_gradients(self, columns: Tensor, diagonal: Tensor, found: Tensor, steps: int) -> Tensor:
        """Return `found` after some steps towards the solution, the diagonal being the preconditioner."""
        left = multiply(self.rows, columns, 1 - self._products(found, columns)).addcmul_(diagonal, found, value=-1)
        step = left / diagonal
        size = (left * step).sum(dim=1, keepdim=True)
        for turn in range(1, steps + 1):
            image = multiply(self.rows, columns, self._products(step, columns)).addcmul_(diagonal, step)
            length = size / (step * image).sum(dim=1, keepdim=True).clamp_(min=torch.finfo(size.dtype).tiny)
            found.addcmul_(length, step)
            if turn == steps:
                break
            left.addcmul_(length, image, value=-1)
            scaled, old = torch.div(left, diagonal, out=image), size
            size = (left * scaled).sum(dim=1, keepdim=True)
            step.mul_(size / old.clamp(min=torch.finfo(size.dtype).tiny)).add_(scaled)
        return found

    def _products(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the inner product of each row with each of its columns, in the order of `rows`."""
        shape = (len(rows), len(columns))
        pattern = csr_matrix(self.rows.starts, self.rows.neighbours, self.ones, shape)
        found: Tensor = torch.sparse.sampled_addmm(pattern, rows, columns.T, beta=0.0).values()
        return found

    # Exactly, blocks of rows that have about as many columns --------------------------------------------------

    def _exact(self, columns: Tensor, shared: Tensor, found: Tensor) -> Tensor:
        size = columns.shape[1]
        # What a row has less than others of its block is filled up with a column of zeros.
        columns = torch.cat([columns, columns.new_zeros(1, size)])
        for rows, places in self._blocks(size, len(columns) - 1):
            chosen = columns.index_select(0, places.reshape(-1)).view(*places.shape, size)
            diagonal = shared + self.penalties[rows].unsqueeze(1)
            found[rows] = _by_columns(chosen, diagonal) if places.shape[1] < size else _by_factors(chosen, diagonal)
        return found

    def _blocks(self, size: int, filler: int) -> list[tuple[Tensor, Tensor]]:
        """Return rows that are solved for together, and their columns, `[rows, longest]`."""
        counts = self.rows.starts.diff().long()
        order = counts.sort(stable=True).indices
        lengths: list[int] = counts[order].tolist()
        cells = CELLS["cuda" if counts.is_cuda else "cpu"] // size
        blocks, first = [], sum(length == 0 for length in lengths)
        while first < len(lengths):
            last = _end_of_block(lengths, first, cells)
            rows = order[first:last]
            steps = torch.arange(lengths[last - 1], device=counts.device)
            there = steps < counts[rows].unsqueeze(1)
            places = (self.rows.starts[rows].unsqueeze(1) + steps).clamp(max=len(self.rows.neighbours) - 1)
            blocks.append((rows, self.rows.neighbours[places].long().masked_fill(~there, filler)))
            first = last
        return blocks


def _end_of_block(lengths: list[int], first: int, cells: int) -> int:
    """Return where a block of lengths ends, which are sorted, the longest being last."""
    last = first + 1
    while last < len(lengths) and lengths[last] <= GROWTH * lengths[first] + 1:
        if (last + 1 - first) * lengths[last] > cells:
            break
        last += 1
    return last


def _by_columns(chosen: Tensor, diagonal: Tensor) -> Tensor:
    """Return `(D + V'V)^-1 V'1` of each row as `D^-1 V' (1 + V D^-1 V')^-1 1`: as many unknowns as columns."""
    scaled = chosen / diagonal.unsqueeze(1)
    system = torch.bmm(scaled, chosen.transpose(1, 2))
    system.diagonal(dim1=1, dim2=2).add_(1)
    weights = torch.cholesky_solve(system.new_ones(*chosen.shape[:2], 1), torch.linalg.cholesky_ex(system)[0])
    return torch.bmm(scaled.transpose(1, 2), weights).squeeze(2)


def _by_factors(chosen: Tensor, diagonal: Tensor) -> Tensor:
    """Return `(D + V'V)^-1 V'1` of each row, as many unknowns as factors."""
    system = torch.bmm(chosen.transpose(1, 2), chosen)
    system.diagonal(dim1=1, dim2=2).add_(diagonal)
    return torch.cholesky_solve(chosen.sum(dim=1).unsqueeze(2), torch.linalg.cholesky_ex(system)[0]).squeeze(2)
