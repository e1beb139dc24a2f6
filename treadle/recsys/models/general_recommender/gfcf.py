"""Graph filter based collaborative filtering."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.fitted import FittedRecommender
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.graph import Edges, multiply
from treadle.recsys.models.histories import unique_pairs
from treadle.recsys.models.settings import number, whole

# The leading eigenvectors of a large matrix that is only known by what it does to vectors


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


class GFCF(FittedRecommender):
    """Filters a user's items over the graph: a linear filter, and an ideal low-pass filter, in closed form.

    Shen, Wu, Zhang, Shan, Zhang, Letaief and Li, "How powerful is graph convolution for recommendation?", 2021. With R,
    the matrix of users and items with each entry divided by the roots of both degrees, a user's row r becomes
    `r R'R + alpha * r D^-1/2 V V' D^1/2`: D are the degrees of items, V the `rank` first right singular vectors of R.

    Attributes:
        vectors: V, `[n_items, rank]`.
    """

    vectors: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.alpha, self.rank = number(config, "alpha"), whole(config, "rank")
        self.seed = int(config["seed"])
        self.ratings = _Ratings(dataset)
        self.keep("vectors")

    @torch.no_grad()
    def fit(self, dataset: Dataset) -> None:
        """Find the singular vectors."""
        device = self.refresh_histories(dataset).items.device
        self.ratings = _Ratings(dataset).to(device)
        rank = min(self.rank, self.ratings.n_used)
        seed = fold_seed(self.seed, "singular vectors")
        _, self.vectors = leading_eigenvectors(self.ratings, self.n_items, rank, seed=seed, device=device)

    def scores(self, users: Tensor) -> Tensor:
        """Return the filtered histories."""
        return self._filtered(self.histories.rows(users, distinct=False))

    def _filtered(self, history: Tensor) -> Tensor:
        """Return what both filters make of how often each item was used, `[rows, n_items]`."""
        roots, vectors = self.ratings.item_roots, self.result("vectors")
        low = ((history / roots) @ vectors) @ vectors.T * roots
        smooth: Tensor = self.ratings(history.T.contiguous()).T
        return smooth + self.alpha * low

    def item_similarities(self, items: Tensor) -> Tensor:
        """Return the scores for somebody who has used only one of some items, `[items, n_items]`."""
        return self._filtered(functional.one_hot(items, self.n_items).to(self.vectors.dtype))


class _Ratings(Constants):
    """Who used what, each entry divided by the roots of both degrees: R.

    Attributes:
        n_used: How many items somebody used.
        weights: The entries, by user.
        weights_by_item: The entries, by item.
        item_roots: The root of how many users each item has, 1 for items of nobody.
    """

    weights: Tensor
    weights_by_item: Tensor
    item_roots: Tensor

    def __init__(self, dataset: Dataset) -> None:
        users, items, _ = unique_pairs(dataset)
        user_roots, item_roots = (
            torch.bincount(ids, minlength=count).clamp(min=1).sqrt()
            for ids, count in ((users, dataset.user_num), (items, dataset.item_num))
        )
        weights = 1 / (user_roots[users] * item_roots[items])
        edges = Edges(users, items, dataset.user_num, dataset.item_num)
        super().__init__(weights=weights, weights_by_item=weights[edges.back.place], item_roots=item_roots)
        self.edges = edges
        self.n_used = int((edges.back.starts.diff() > 0).sum())

    def forward(self, features: Tensor) -> Tensor:
        """Return `R'R` times features of items, `[n_items, n]`."""
        return multiply(self.edges.back, multiply(self.edges.there, features, self.weights), self.weights_by_item)
