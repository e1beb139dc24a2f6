"""Eigenvectors of matrices that are only known by their products."""

import pytest
import torch

from treadle.errors import ConfigError
from treadle.recsys.models.general_recommender.gfcf import leading_eigenvectors

SIZES = [(200, 10, 8), (200, 60, 64), (30, 30, 64), (50, 20, 64), (500, 40, 16), (1, 1, 4), (7, 3, 2), (300, 5, 3)]


@pytest.mark.parametrize(("size", "count", "block"), SIZES)
def test_the_leading_eigenvectors_are_those_of_a_dense_solver(size: int, count: int, block: int) -> None:
    generator = torch.Generator().manual_seed(size)
    turned = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    matrix = turned @ torch.diag(torch.linspace(0, 1, size) ** 2) @ turned.T
    values, vectors = leading_eigenvectors(lambda given: matrix @ given, size, count, block=block)
    exact, expected = torch.linalg.eigh(matrix.double())
    torch.testing.assert_close(values.double(), exact.flip(0)[:count], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(count), rtol=0, atol=1e-5)
    span = expected.flip(1)[:, :count]
    torch.testing.assert_close((vectors @ vectors.T).double(), span @ span.T, rtol=0, atol=1e-3)


def test_the_same_seed_gives_the_same_vectors() -> None:
    matrix = torch.diag(torch.linspace(0, 1, 60))
    first, second = (leading_eigenvectors(lambda given: matrix @ given, 60, 7, seed=3)[1] for _ in range(2))
    assert torch.equal(first, second)


def test_more_vectors_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="a matrix of 4 rows has no 5 eigenvectors"):
        leading_eigenvectors(lambda given: given, 4, 5)


def test_vectors_that_are_not_found_in_time_are_an_error() -> None:
    matrix = torch.diag(torch.linspace(0.99, 1, 400))
    with pytest.raises(ConfigError, match="after 2 products with the matrix, 5 eigenvectors are not found"):
        leading_eigenvectors(lambda given: matrix @ given, 400, 5, block=8, most=2)
