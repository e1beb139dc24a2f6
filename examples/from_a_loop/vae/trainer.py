"""Trains the same variational autoencoder with Treadle."""

import argparse

import torch
from torch.utils.data import DataLoader

from treadle import Trainer

from .model import VAE, load_data, negative_elbo


class VAETrainer(Trainer):
    """The images are inputs and targets at once; their labels are not used."""

    def calculate_train_batch_loss(self, batch):
        images, _ = batch
        outputs = self.model(images)
        return {"loss": negative_elbo(outputs, images), "model_outputs": outputs, "batch_size": len(images)}

    calculate_eval_batch_loss = calculate_train_batch_loss


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="runs/vae")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    train_set, test_set = load_data()
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    trainer = VAETrainer(model, None, optimizer, loss_reduction="sum", run_dir=args.out)
    trainer.train(
        DataLoader(train_set, batch_size=args.batch_size, shuffle=True),
        num_epochs=args.epochs,
        eval_dataset=DataLoader(test_set, batch_size=args.batch_size),
        resume="auto",
    )


if __name__ == "__main__":
    main()
