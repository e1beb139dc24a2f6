import torch

from treadle.recsys.data.dataloader.train_dataloader import RowsOfUsers

USERS = torch.tensor([3, 1, 3, 3, 7, 3, 1, 3])


def draws(count: int, seed: int = 0) -> torch.Tensor:
    return RowsOfUsers(USERS).draw(count, torch.Generator().manual_seed(seed))


def test_users_are_drawn_equally_often_whatever_they_did() -> None:
    drawn = USERS[draws(30_000)].bincount()
    assert drawn.nonzero().squeeze(1).tolist() == [1, 3, 7]
    # Three standard deviations of a count with a chance of a third are 245.
    assert (drawn[[1, 3, 7]] - 10_000).abs().max() < 300


def test_the_rows_of_a_user_are_drawn_equally_often() -> None:
    counts = draws(30_000).bincount(minlength=len(USERS))
    assert (counts[USERS == 3] - 2_000).abs().max() < 200
    assert (counts[USERS == 1] - 5_000).abs().max() < 250


def test_the_same_generator_draws_the_same_rows() -> None:
    assert torch.equal(draws(100), draws(100))
    assert not torch.equal(draws(100), draws(100, seed=1))
