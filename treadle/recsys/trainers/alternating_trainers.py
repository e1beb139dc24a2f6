"""The trainer of NCL."""

from collections.abc import Iterable
from typing import Any

from treadle.recsys.models.settings import whole
from treadle.recsys.trainers.abstract_trainer import Pass
from treadle.recsys.trainers.trainer import Trainer

# The trainer of RecVAE


class RecVAETrainer(Trainer):
    """Trains an encoder and a decoder in turns, each with an optimizer of its own.

    An epoch is `n_enc_epochs` passes over the data for the encoder, `model.update_prior()`, and `n_dec_epochs` passes
    for the decoder. Its loss is that of the decoder.

    Attributes:
        optimizer_encoder, optimizer_decoder: The two optimizers.
        n_enc_epochs, n_dec_epochs: How many passes each has.

    Raises:
        ConfigError: One of these is no whole number from 1.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.n_enc_epochs, self.n_dec_epochs = whole(config, "n_enc_epochs"), whole(config, "n_dec_epochs")
        self.optimizer_encoder = self._build_optimizer(params=self.model.encoder.parameters())
        self.optimizer_decoder = self._build_optimizer(params=self.model.decoder.parameters())
        self.optimizer = self.optimizer_decoder

    def _passes(self) -> Iterable[Pass]:
        model = self.model
        return [
            Pass(
                name="encoder",
                loss=lambda interaction: model.calculate_loss(interaction, encoder_flag=True),
                optimizer=self.optimizer_encoder,
                parameters=list(model.encoder.parameters()),
                times=self.n_enc_epochs,
                after=model.update_prior,
                counts=False,
            ),
            Pass(
                name="decoder",
                loss=lambda interaction: model.calculate_loss(interaction, encoder_flag=False),
                optimizer=self.optimizer_decoder,
                parameters=list(model.decoder.parameters()),
                times=self.n_dec_epochs,
            ),
        ]


class NCLTrainer(Trainer):
    """Trains a model that divides what it embeds into clusters, by turns: clusters, then the weights for given ones.

    Every `m_step` epochs begin with `model.e_step()`. In the first `warm_up_step` epochs the last part of the loss,
    that of the clusters, is left out. A model whose loss can be calculated without clusters says so with
    `needs_clusters_in_warm_up = False`: clusters that no later epoch would use are then not looked for. What `e_step`
    finds belongs to the model's state: buffers, so that a run which is resumed goes on with the clusters that it had.

    Attributes:
        num_m_step: How many epochs lie between two clusterings.
        warm_up_step: How many epochs there are before clusters count.

    Raises:
        ConfigError: One of them is no whole number, or `m_step` is below 1.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.num_m_step = whole(config, "m_step")
        self.warm_up_step = whole(config, "warm_up_step", 0)

    def _passes(self) -> Iterable[Pass]:
        model, optimizer, warm = self.model, self.optimizer, self.warm_up_step
        return [
            Pass(
                name="warm_up",
                loss=lambda interaction: model.calculate_loss(interaction)[:-1],
                optimizer=optimizer,
                is_due=lambda epoch: epoch < warm,
                before=self._find_clusters,
            ),
            Pass(
                name="train",
                loss=model.calculate_loss,
                optimizer=optimizer,
                is_due=lambda epoch: epoch >= warm,
                before=self._find_clusters,
            ),
        ]

    def _find_clusters(self, epoch: int) -> None:
        """Find the clusters, if it is time, and if an epoch that needs them comes before the next time."""
        first = 0 if getattr(self.model, "needs_clusters_in_warm_up", True) else self.warm_up_step
        if epoch % self.num_m_step == 0 and epoch + self.num_m_step > first:
            self._say("Running E-step")
            self.model.e_step()
            self._processes.share_buffers(self.model)
