"""The trainer of RecVAE."""

from collections.abc import Iterable
from typing import Any

from treadle.recsys.models.settings import whole
from treadle.recsys.trainers.passes import Pass
from treadle.recsys.trainers.trainer import Trainer


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
