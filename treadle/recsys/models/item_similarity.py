"""What models of similar items share: how often items are used together, and scores from similarities."""

import torch
from torch import Tensor

from treadle.recsys.models.histories import Histories
from treadle.recsys.models.sparse import csr_matrix


def interaction_matrices(histories: Histories) -> tuple[Tensor, Tensor]:
    """Return the matrix of users and items, and that of items and users, sparse in CSR form, on the host."""
    counts, items = histories.counts.cpu(), histories.items.cpu()
    users = torch.repeat_interleave(torch.arange(len(counts)), counts)
    by_item = items.sort(stable=True).indices
    size = (histories.n_users, histories.n_items)
    of_users = csr_matrix(_starts(counts), items, torch.ones(len(items)), size)
    per_item = torch.bincount(items, minlength=size[1])
    return of_users, csr_matrix(_starts(per_item), users[by_item], torch.ones(len(items)), size[::-1])


def common_users(histories: Histories) -> Tensor:
    """Return how many users each two items have in common, as a sparse matrix on the host in CSR form.

    It is symmetric, and its diagonal says how many users an item has.
    """
    of_users, of_items = interaction_matrices(histories)
    return torch.mm(of_items, of_users)


def common_items(histories: Histories) -> Tensor:
    """Return how many items each two users have in common, in the form of `common_users`."""
    of_users, of_items = interaction_matrices(histories)
    return torch.mm(of_users, of_items)


def _starts(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def similarity_scores(histories: Histories, users: Tensor, similarity: Tensor) -> Tensor:
    """Return the sum of the similarities of a user's items to each item, `[users, n_items]`.

    Args:
        histories: What each user has used.
        users: Which users.
        similarity: `[n_items, n_items]`, dense or sparse: the row of an item says what it adds to the score of others.
    """
    scores = torch.mm(histories.sparse_rows(users), similarity)
    return scores if scores.layout == torch.strided else scores.to_dense()
