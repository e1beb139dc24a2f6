"""Has a trained GPT write: python examples/language_model/sample.py runs/gpt_char_small --prompt "ROMEO:" """

import argparse
from pathlib import Path
from typing import Any

import torch
from shakespeare import Characters, read_text  # the file beside this one
from torch import Tensor

from treadle.config import LazyConfig, instantiate
from treadle.engine import Checkpointer


@torch.no_grad()
def continued(model: Any, tokens: Tensor, count: int, temperature: float = 1.0) -> Tensor:
    """Return `tokens`, of (1, length), with `count` more, each drawn by the model's scores for it."""
    for _ in range(count):
        scores = model(tokens[:, -model.context :])[:, -1]
        drawn = torch.multinomial((scores / temperature).softmax(dim=-1), num_samples=1)
        tokens = torch.cat([tokens, drawn], dim=1)
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description="Have a trained character GPT write.")
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--prompt", default="\n", help="what the text begins with")
    parser.add_argument("--characters", type=int, default=400, help="how many characters to write")
    parser.add_argument("--temperature", type=float, default=0.8, help="below 1 likely ones become likelier")
    parser.add_argument("--checkpoint", default="model_best", help="the name of the checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another text")
    options = parser.parse_args()

    config = LazyConfig.load(options.run / "config.yaml")
    # The text that it was trained on says which character has which number.
    characters = Characters(read_text(config.folder))
    model = instantiate(config.model).eval()
    Checkpointer(model, options.run).load(options.checkpoint)
    torch.manual_seed(options.seed)
    prompt = characters.encode(options.prompt).unsqueeze(0)
    text = continued(model, prompt, options.characters, options.temperature)
    print(characters.decode(text[0].tolist()))


if __name__ == "__main__":
    main()
