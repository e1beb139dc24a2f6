"""CDAE, MultiVAE and RecVAE against their formulas."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence
from torch.nn import functional

from tests.recsys.models.building import fill, train_steps
from tests.recsys.models.tiny_ratings import Built, all_scores, build
from treadle.errors import ConfigError
from treadle.recsys import Interaction
from treadle.recsys.models.general_recommender.recvae import CompositePrior, Encoder, log_density

USERS = torch.tensor([4, 2, 9])


def quiet(name: str, **settings: object) -> Built:
    """Return a model with large weights, in evaluation: nothing is random."""
    built = build(name, **settings)
    fill(built.model)
    built.model.eval()
    return built


def history(built: Built) -> Tensor:
    return built.matrix()[USERS].float()


def test_cdae_restores_a_history_from_its_items_and_its_user() -> None:
    built = quiet("CDAE")
    model, seen = built.model, history(built)
    hidden = (seen @ model.h_item.weight.T + model.h_item.bias + model.h_user.weight[USERS]).relu()
    expected = (hidden @ model.out_layer.weight.T + model.out_layer.bias).sigmoid()
    torch.testing.assert_close(all_scores(built)[USERS], expected)


def test_cdae_adds_up_items_and_averages_users_and_penalises_squares() -> None:
    built = quiet("CDAE", reg_weight_1=0.5, reg_weight_2=0.1)
    model = built.model
    error = functional.binary_cross_entropy(all_scores(built)[USERS], history(built), reduction="sum") / 3
    weights = [model.h_user.weight, model.h_item.weight, model.out_layer.weight]
    penalty = sum(0.5 * one.abs().sum() + 0.05 * one.square().sum() for one in weights)
    torch.testing.assert_close(model.calculate_loss(Interaction({"user_id": USERS})), error + penalty)


def test_cdae_with_squares_is_trained_on_what_it_returns() -> None:
    built = quiet("CDAE with squares", reg_weight_1=0.0, reg_weight_2=0.0)
    expected = (all_scores(built)[USERS] - history(built)).square().sum() / 3
    torch.testing.assert_close(built.model.calculate_loss(Interaction({"user_id": USERS})), expected)


def test_cdae_hides_a_share_of_a_history_in_training_only() -> None:
    built = build("CDAE", corruption_ratio=0.5)
    seen = torch.ones(200, built.model.n_items)
    built.model.train()
    assert 0.4 < (built.model.dropout(seen) == 0).float().mean() < 0.6
    built.model.eval()
    assert torch.equal(built.model.dropout(seen), seen)


def multivae_by_hand(built: Built) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, means and log-variances of the users, by two dense networks."""
    model = built.model
    hidden = functional.normalize(history(built))
    for place, layer in enumerate(one for one in model.encoder if isinstance(one, torch.nn.Linear)):
        hidden = (hidden if place == 0 else hidden.tanh()) @ layer.weight.T + layer.bias
    mean, logvar = hidden[:, : model.lat_dim // 2], hidden[:, model.lat_dim // 2 :]
    output = mean
    for place, layer in enumerate(one for one in model.decoder if isinstance(one, torch.nn.Linear)):
        output = (output if place == 0 else output.tanh()) @ layer.weight.T + layer.bias
    return output, mean, logvar


def test_multivae_decodes_the_mean_of_what_it_encodes() -> None:
    built = quiet("MultiVAE")
    torch.testing.assert_close(all_scores(built)[USERS], multivae_by_hand(built)[0])


def test_multivae_is_a_multinomial_likelihood_and_an_annealed_divergence() -> None:
    built = quiet("MultiVAE", total_anneal_steps=10, anneal_cap=0.25)
    logits, mean, logvar = multivae_by_hand(built)
    divergence = kl_divergence(Normal(mean, (0.5 * logvar).exp()), Normal(0.0, 1.0)).sum(dim=1).mean()
    likelihood = sum(logits.log_softmax(1)[row][seen > 0].sum() for row, seen in enumerate(history(built))) / 3
    batch = Interaction({"user_id": USERS})
    for weight in (0.1, 0.2, 0.25, 0.25):
        torch.testing.assert_close(built.model.calculate_loss(batch), weight * divergence - likelihood)
    assert built.model.state_dict()["update"] == 4


def test_multivae_without_annealing_has_the_highest_weight_from_the_start() -> None:
    assert build("MultiVAE", total_anneal_steps=0, anneal_cap=0.3).model.anneal().item() == pytest.approx(0.3)


def test_multivae_draws_from_a_gaussian_of_its_own_variance_in_training() -> None:
    model = build("MultiVAE").model.train()
    drawn = model.reparameterize(torch.full((20_000,), 2.0), torch.full((20_000,), math.log(0.25)))
    assert drawn.mean().item() == pytest.approx(2.0, abs=0.02)
    assert drawn.std().item() == pytest.approx(0.5, abs=0.02)


def test_multivae_needs_a_latent_dimension_that_can_be_halved() -> None:
    with pytest.raises(ConfigError, match="latent_dimension=5 must be even"):
        build("MultiVAE", latent_dimension=5)


def test_the_density_of_a_normal_distribution_is_torchs() -> None:
    values, mean, logvar = torch.randn(3, 7)
    torch.testing.assert_close(log_density(values, mean, logvar), Normal(mean, (0.5 * logvar).exp()).log_prob(values))


def test_recvaes_prior_is_a_mixture_of_three() -> None:
    torch.manual_seed(0)
    encoder = Encoder(8, 4, 12)
    prior = CompositePrior(encoder, [0.15, 0.75, 0.1]).eval()
    seen, latent = torch.rand(5, 12), torch.randn(5, 4)
    mean, logvar = encoder.eval()(seen, 0.0)
    means = torch.stack([torch.zeros_like(mean), mean, torch.zeros_like(mean)], dim=-1)
    variances = torch.stack([torch.ones_like(mean), logvar.exp(), torch.full_like(mean, math.exp(10))], dim=-1)
    mixture = MixtureSameFamily(Categorical(torch.tensor([0.15, 0.75, 0.1])), Normal(means, variances.sqrt()))
    torch.testing.assert_close(prior(seen, latent), mixture.log_prob(latent), rtol=1e-4, atol=1e-5)


def test_recvaes_encoder_gives_each_layer_all_before_it() -> None:
    torch.manual_seed(0)
    encoder = Encoder(6, 3, 12).eval()
    seen = torch.rand(4, 12)
    layers, norms = list(encoder.layers), list(encoder.norms)
    first = norms[0](functional.silu(layers[0](functional.normalize(seen))))
    second = norms[1](functional.silu(layers[1](first) + first))
    third = norms[2](functional.silu(layers[2](second) + first + second))
    fourth = norms[3](functional.silu(layers[3](third) + first + second + third))
    fifth = norms[4](functional.silu(layers[4](fourth) + first + second + third + fourth))
    mean, logvar = encoder(seen, 0.5)
    torch.testing.assert_close(mean, encoder.fc_mu(fifth))
    torch.testing.assert_close(logvar, encoder.fc_logvar(fifth))


def test_recvae_weighs_the_divergence_by_the_length_of_a_history() -> None:
    built = build("RecVAE", gamma=0.01)
    model = built.model.eval()
    seen = history(built)
    logits, latent, mean, logvar = model(seen, 0.0)
    excess = (log_density(latent, mean, logvar) - model.prior(seen, latent)).sum(dim=1)
    likelihood = (logits.log_softmax(1) * seen).sum(dim=1)
    expected = (0.01 * seen.sum(dim=1) * excess - likelihood).mean()
    batch = Interaction({"user_id": USERS})
    torch.testing.assert_close(model.calculate_loss(batch), expected)
    torch.testing.assert_close(model.calculate_loss(batch, encoder_flag=False), -likelihood.mean())


def test_recvae_gives_no_gradient_to_the_encoder_when_the_decoder_is_trained() -> None:
    built = build("RecVAE")
    built.model.train()
    built.model.calculate_loss(built.batch(), encoder_flag=False).backward()
    assert all(one.grad is None for one in built.model.encoder.parameters())
    assert all(one.grad is not None for one in built.model.decoder.parameters())


def test_recvaes_prior_stays_where_it_is_until_it_is_updated() -> None:
    built = build("RecVAE")
    train_steps(built, 2)
    old, new = built.model.prior.encoder_old.state_dict(), built.model.encoder.state_dict()
    assert not torch.equal(old["fc_mu.weight"], new["fc_mu.weight"])
    built.model.update_prior()
    assert all(torch.equal(value, new[name]) for name, value in built.model.prior.encoder_old.state_dict().items())
    assert "prior.encoder_old.fc_mu.weight" in built.model.state_dict()


def test_recvaes_mixture_must_be_three_shares() -> None:
    with pytest.raises(
        ConfigError, match=r"mixture_weights=\[0.5, 0.5\] must be three shares above 0 that add up to 1"
    ):
        build("RecVAE", mixture_weights=[0.5, 0.5])
