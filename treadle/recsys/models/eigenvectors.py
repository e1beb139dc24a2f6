"""The leading eigenvectors of a large matrix that is only known by what it does to vectors."""

from collections.abc import Callable

import torch
from torch import Tensor

from treadle.errors import ConfigError

SPARE = 32
"""How many more vectors than are asked for are kept at a restart: the last of them would converge slowly alone."""
PATIENCE = 8
"""How many products there are from one look at the result to the next."""


def leading_eigenvectors(
    multiply: Callable[[Tensor], Tensor],
    size: int,
    count: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    block: int = 64,
    tolerance: float = 1e-5,
    most: int = 400,
) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues of a symmetric matrix, largest first, and their vectors, `[size, count]`.

    By the block Lanczos method with full orthogonalisation (Golub and Underwood, 1977), restarted with the best vectors
    (Wu and Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", 2000).

    Args:
        multiply: Takes vectors `[size, n]` and returns the matrix times them.
        size: The length of a vector.
        count: How many vectors.
        seed: What the first vectors are drawn from.
        device: Where the vectors are.
        block: How many vectors are multiplied at a time.
        tolerance: How far the matrix may turn a vector from itself, relative to the largest eigenvalue.
        most: The most products before it gives up.

    Raises:
        ConfigError: There are not that many vectors, or they were not found.
    """
    if not 0 < count <= size:
        raise ConfigError(f"a matrix of {size} rows has no {count} eigenvectors")
    block = min(block, size)
    limit = min(size, max(4 * count, count + SPARE + 4 * block))
    generator = torch.Generator().manual_seed(seed)
    basis = torch.empty(size, 0, device=device)
    projected = torch.empty(0, 0, device=device)
    fresh = _orthonormal(torch.randn(size, block, generator=generator).to(device), basis)
    for turn in range(1, most + 1):
        basis, image = torch.cat([basis, fresh], dim=1), multiply(fresh)
        overlap = basis.T @ image
        projected = _bordered(projected, overlap)
        room = min(block, size - basis.shape[1])
        fresh, scale = _next_block(image - basis @ overlap, basis)
        full = basis.shape[1] + block > limit
        # Looking whether it is done costs as much as several products.
        if basis.shape[1] < count or not (full or room < block or turn % PATIENCE == 0):
            continue
        values, turns = _turned(projected)
        error = (scale @ turns[-image.shape[1] :, :count]).norm(dim=0).max() if room else scale.new_zeros(())
        if bool(error <= tolerance * values.abs().max()):
            return values[:count], basis @ turns[:, :count]
        if full:
            kept = min(count + SPARE, basis.shape[1])
            basis, projected = basis @ turns[:, :kept], torch.diag(values[:kept])
        fresh = fresh[:, :room]
    raise ConfigError(f"after {most} products with the matrix, {count} eigenvectors are not found; ask for fewer")


def _bordered(projected: Tensor, overlap: Tensor) -> Tensor:
    """Return the projected matrix with rows and columns for new vectors."""
    new = overlap.shape[1]
    old = len(projected)
    made = overlap.new_zeros(old + new, old + new)
    made[:old, :old] = projected
    made[:, old:], made[old:, :old] = overlap, overlap[:old].T
    return (made + made.T) / 2


def _turned(projected: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of the projected matrix, largest first, and its eigenvectors."""
    values, turns = torch.linalg.eigh(projected.double())
    return values.flip(0).to(projected.dtype), turns.flip(1).to(projected.dtype)


def _next_block(left: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal vectors of what is left outside the basis, and what that is in terms of them."""
    fresh, scale = torch.linalg.qr(left - basis @ (basis.T @ left))
    # Where little is left, rounding decides where it points: once more off the basis.
    return _orthonormal(fresh, basis), scale


def _orthonormal(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return an orthonormal basis of the vectors, less what they have in `basis`."""
    made: Tensor = torch.linalg.qr(vectors - basis @ (basis.T @ vectors))[0]
    return made
