"""Evaluators of translations and of regressions."""

import logging
import math
from typing import Any

import pytest
import torch

from treadle.engine.evaluation import BLEUEvaluator, RegEvaluator, inference_on_dataset
from treadle.errors import DataError

sacrebleu = pytest.importorskip("sacrebleu", reason="the extra hf is not installed")
stats = pytest.importorskip("scipy.stats", reason="the extra recsys is not installed")


def test_correlations_are_those_of_scipy_with_ties_over_all_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (20,), generator=generator).float()
    scores = labels + torch.randn(20, generator=generator).round()
    evaluator = RegEvaluator()
    for rows in range(0, 20, 6):
        part = slice(rows, rows + 6)
        evaluator.process({"labels": labels[part]}, {"prediction_scores": scores[part, None]})
    found = evaluator.evaluate()
    pearson, spearman = stats.pearsonr(scores, labels)[0], stats.spearmanr(scores, labels)[0]
    assert found == pytest.approx({"pearson": pearson, "spearman": spearman, "corr": (pearson + spearman) / 2})


def test_a_correlation_with_a_constant_is_nan_and_told(caplog: pytest.LogCaptureFixture) -> None:
    evaluator = RegEvaluator()
    evaluator.process({"labels": torch.arange(3)}, torch.ones(3))
    with caplog.at_level(logging.WARNING, "treadle"):
        assert all(map(math.isnan, evaluator.evaluate().values()))
    assert "all scores or all labels are equal" in caplog.text


def test_what_is_no_regression_is_refused() -> None:
    evaluator = RegEvaluator()
    with pytest.raises(DataError, match=r"scores of shape \(3, 2\) for labels of shape \(3,\); have the model return"):
        evaluator.process({"labels": torch.arange(3)}, torch.ones(3, 2))
    with pytest.raises(DataError, match="needs two samples or more"):
        evaluator.evaluate()


CANDIDATES = ["the cat sat on the mat today", "a dog ran over the hill quickly", "birds fly"]
REFERENCES = ["the cat sat on the mat", "the dog ran over the hill", "birds can fly"]


def test_bleu_is_that_of_sacrebleu_over_all_batches() -> None:
    evaluator = BLEUEvaluator()
    for number in range(3):
        evaluator.process({"reference": REFERENCES[number]}, {"candidate": [CANDIDATES[number]]})
    assert evaluator.evaluate() == {"bleu_score": sacrebleu.corpus_bleu(CANDIDATES, [REFERENCES]).score}
    evaluator.reset()
    evaluator.process({"reference": [[*REFERENCES[:2]], REFERENCES[2]]}, {"candidate": CANDIDATES[1:]})
    streams: Any = [[REFERENCES[0], REFERENCES[2]], [REFERENCES[1], None]]
    assert evaluator.evaluate() == {"bleu_score": sacrebleu.corpus_bleu(CANDIDATES[1:], streams).score}


def test_bleu_decodes_tokens_and_takes_part_in_an_evaluation() -> None:
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    from tests.hf.text import tokenizer

    text = tokenizer()
    ids = text(["the cat sat on mat", "dog ran on roof"], padding=True, return_tensors="pt")["input_ids"]
    labels = ids.masked_fill(ids == text.pad_token_id, -100)

    class Echo(torch.nn.Module):
        def forward(self, source: torch.Tensor, reference: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"candidate": source}

    batches = [{"source": ids[[row]], "reference": labels[[row]]} for row in range(2)]
    found = inference_on_dataset(Echo(), batches, evaluator=BLEUEvaluator(text, lowercase=True), device="cpu")
    assert found == pytest.approx({"bleu_score": 100.0})


@pytest.mark.parametrize(
    ("inputs", "outputs", "told"),
    [
        ({"reference": "a"}, torch.ones(1), "needs 'candidate', and the model returned a Tensor"),
        ({"source": "a"}, {"candidate": "a"}, r"needs 'reference', and the inputs of the model have \['source'\]"),
        ({"reference": ["a"]}, {"candidate": ["a", "b"]}, "got 2 candidates for 1 references"),
        ({"reference": ["a"]}, {"candidate": torch.ones(1, 2)}, "got tokens; pass it the tokenizer"),
        ({"reference": ["a"]}, {"candidate": 3}, "compares texts, and got a int"),
    ],
)
def test_what_is_no_translation_is_refused(inputs: Any, outputs: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        BLEUEvaluator().process(inputs, outputs)


def test_without_a_sample_there_is_no_score() -> None:
    with pytest.raises(DataError, match="BLEUEvaluator saw no sample"):
        BLEUEvaluator().evaluate()
