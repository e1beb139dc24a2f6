"""From purchases to recommendations: train LightGCN, test it, ask it for articles, and look for similar ones.

python -m examples.recsys.quick_start --model BPR --epochs 30
"""

import argparse

from examples.recsys.shop import open_shop
from treadle.recsys import get_model, get_trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="LightGCN")
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()

    config, train, valid, test = open_shop(arguments.model, epochs=arguments.epochs)
    trainer = get_trainer(config, get_model(arguments.model)(config, train.dataset))
    best_score, _ = trainer.fit(train, valid)
    print(f"best valid ndcg@10 {best_score:.4f}; test {dict(trainer.evaluate(test))}")

    # Whoever is new gets what is popular.
    print(trainer.recommend(["customer 7", "customer 8", "a new customer"], k=5))
    print(trainer.similar_items("article 3", k=5))
    print(f"written: {trainer.export_recommendations('recommendations.csv', k=10)}")


if __name__ == "__main__":
    main()
