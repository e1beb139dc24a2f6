"""BLEU of translations, by sacrebleu."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from treadle.engine.evaluation.evaluators import DatasetEvaluator
from treadle.errors import DataError, require

CANDIDATE, REFERENCE = "candidate", "reference"
IGNORED = -100
"""What stands in labels where nothing is to be predicted."""


class BLEUEvaluator(DatasetEvaluator):
    """The BLEU score of all translations together, from 0 to 100, as `bleu_score`; computed by sacrebleu.

    The model returns its translations as `candidate`, and their inputs have what they are compared with as `reference`:
    a text, or a text for each sample; for a sample with several references a list of them. With a tokenizer they may be
    tensors of tokens, too.

    Args:
        tokenizer: Turns tokens into text; None where there are texts.
        options: Arguments of `sacrebleu.corpus_bleu`, such as `lowercase` or `tokenize`.

    Raises:
        MissingDependencyError: sacrebleu is not installed.
    """

    def __init__(self, tokenizer: Any = None, **options: Any) -> None:
        require("sacrebleu", extra="hf", user="BLEUEvaluator")
        self._tokenizer, self._options = tokenizer, options
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._candidates: list[str] = []
        self._references: list[list[str]] = []

    def process(self, inputs: Any, outputs: Any) -> None:
        """Take the translations of one batch, and what they are compared with."""
        candidates = self._texts(_entry(outputs, CANDIDATE, "the model returned"))
        references = [
            one if isinstance(one, list) else [one]
            for one in self._texts(_entry(inputs, REFERENCE, "the inputs of the model have"))
        ]
        if len(candidates) == 1 and len(references) > 1 and all(len(one) == 1 for one in references):
            # One text, with several that it is compared with.
            references = [[one[0] for one in references]]
        if len(candidates) != len(references):
            raise DataError(f"BLEUEvaluator got {len(candidates)} candidates for {len(references)} references")
        self._candidates += candidates
        self._references += references

    def evaluate(self) -> dict[str, float]:
        """Return the score over the samples of all processes."""
        from sacrebleu import corpus_bleu

        if not self._candidates:
            raise DataError("BLEUEvaluator saw no sample; check the test data and evaluation.eval_iter")
        most = max(map(len, self._references))
        # By number of the reference and then by sample, as sacrebleu wants them; it leaves out what is None.
        streams = [[one[number] if number < len(one) else None for one in self._references] for number in range(most)]
        return {"bleu_score": float(corpus_bleu(self._candidates, streams, **self._options).score)}  # type: ignore[arg-type]

    def _texts(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            return [value]
        if isinstance(value, Tensor):
            return self._decoded(value)
        if isinstance(value, Sequence):
            return [self._decoded(one[None])[0] if isinstance(one, Tensor) else one for one in value]
        raise DataError(f"BLEUEvaluator compares texts, and got a {type(value).__name__}")

    def _decoded(self, tokens: Tensor) -> list[str]:
        if self._tokenizer is None:
            raise DataError("BLEUEvaluator got tokens; pass it the tokenizer that turns them into text")
        padding = self._tokenizer.pad_token_id or 0
        kept = torch.where(tokens == IGNORED, padding, tokens)
        texts: list[str] = self._tokenizer.batch_decode(kept, skip_special_tokens=True)
        return texts


def _entry(value: Any, name: str, whose: str) -> Any:
    if isinstance(value, Mapping) and name in value:
        return value[name]
    has = sorted(map(str, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
    raise DataError(f"BLEUEvaluator needs {name!r}, and {whose} {has}")
