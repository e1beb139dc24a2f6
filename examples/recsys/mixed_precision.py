"""Mixed precision, twice: by a setting, and in a loop of one's own that scales its loss itself.

With the setting every model trains in half precision, graphs with sparse products included; the loss scaler of fp16 is
saved with the run. A loop of one's own has `enable_amp` and `enable_scaler` to go by.

    python -m examples.recsys.mixed_precision
"""

import argparse
from typing import Any

import torch

from examples.recsys.shop import open_shop
from treadle.recsys import Trainer, get_model, get_trainer


class ScalingTrainer(Trainer):
    """Runs the forward pass in half precision, and scales the loss where the device wants it."""

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        # Made once: what it has learnt of the scale is needed in the next epoch, too.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.enable_scaler)
        self.track(scaler=self.scaler)

    def _train_epoch(self, train_data: Any, epoch_idx: int) -> float:
        self.model.train()
        total = 0.0
        for interaction in train_data:
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.enable_amp):
                loss = self.model.calculate_loss(interaction.to(self.device))
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            total += loss.item()
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    for precision in ("fp32", "bf16"):
        config, train, valid, _ = open_shop("LightGCN", epochs=epochs, precision=precision)
        trainer = get_trainer(config, get_model("LightGCN")(config, train.dataset))
        score, _ = trainer.fit(train, valid, verbose=False, saved=False)
        print(f"LightGCN in {precision}: valid ndcg@10 {score:.4f}")
    config, train, valid, _ = open_shop("SimpleX", epochs=epochs, enable_amp=True)
    trainer = ScalingTrainer(config, get_model("SimpleX")(config, train.dataset))
    score, _ = trainer.fit(train, valid, verbose=False, saved=False)
    print(f"SimpleX by hand: valid ndcg@10 {score:.4f}")


if __name__ == "__main__":
    main()
