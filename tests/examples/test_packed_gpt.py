"""The GPT of the examples on packed rows: the same gradient as on padded ones, and no document in another one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from examples.language_model import gpt
from examples.language_model.gpt import GPT
from tests.execution.recording import TapeRecorder
from tests.execution.taped import Recorded
from tests.guards.no_sync import no_sync
from treadle import Trainer
from treadle.data.sources import NEXT_TOKEN, PackedDocuments
from treadle.errors import ConfigError
from treadle.ops.document_attention import DocumentLayout, document_ids, document_layout
from treadle.ops.packed_models import check_no_leak

ROW = 16
LENGTHS = (3, 5, 16, 2, 7, 4, 9, 1, 6, 2, 8, 3)


def documents() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 11, (length,), generator=generator) for length in LENGTHS]


def packed() -> PackedDocuments:
    return PackedDocuments(documents(), ROW, fields=NEXT_TOKEN)


def batch() -> dict[str, Tensor]:
    rows = packed()
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def small(**settings: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(vocabulary_size=11, context=ROW, layers=2, heads=2, width=16, **settings)


def gradient(model: GPT, **inputs: Tensor) -> Tensor:
    model.zero_grad()
    model(**inputs)["loss"].backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


@pytest.mark.parametrize("settings", [{}, {"max_documents": 8}])
def test_the_gradient_of_packed_rows_is_that_of_padded_ones(settings: dict[str, Any]) -> None:
    model = small(**settings).double()
    tokens = torch.nn.utils.rnn.pad_sequence(documents(), batch_first=True)
    targets = torch.full_like(tokens, -100)
    for row, document in enumerate(documents()):
        targets[row, : len(document) - 1] = document[1:]
    expected = gradient(model, tokens=tokens, targets=targets)
    found = gradient(model, **batch())
    assert len(packed()) == 5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert expected.abs().max() > 0.01


def test_no_document_has_a_part_in_another_one() -> None:
    check_no_leak(small(), batch())


def test_a_leak_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(positions: Tensor, **options: Any) -> DocumentLayout:
        layout = document_layout(positions, **options)
        # The third document of a row sees the one before it.
        ids = document_ids(positions)
        mask = layout.mask | ((ids == 2)[:, :, None] & (ids == 1)[:, None, :])[:, None]
        return layout._replace(mask=mask)

    monkeypatch.setattr(gpt, "document_layout", leaking)
    with pytest.raises(
        ConfigError, match=r"GPT mixes documents.*document 2 in row \d moved by .*document_attention.attend"
    ):
        check_no_leak(small(), batch())


def test_the_loss_says_over_how_many_tokens_it_is_a_mean() -> None:
    found = small()(**batch())
    assert isinstance(found, dict)
    assert int(found["num_items_in_batch"]) == sum(LENGTHS) - len(LENGTHS)


def train(kind: type[Trainer], parts: int = 1) -> Tensor:
    model = small().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5, foreach=True)
    trainer = kind(model, None, optimizer, callbacks=(), seed=3)
    rows = PackedDocuments(documents() * 4, ROW, fields=NEXT_TOKEN)
    trainer.train(rows, num_epochs=2, per_device_batch_size=4 // parts, gradient_accumulation_steps=parts)
    if isinstance(trainer, Recorded):
        assert isinstance(trainer.recorder, TapeRecorder)
        assert trainer.recorder.replays > 4
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def test_micro_batches_of_packed_rows_make_the_update_of_one_batch() -> None:
    torch.testing.assert_close(train(Trainer, 2), train(Trainer), rtol=0, atol=1e-12)


def test_a_step_over_packed_rows_is_recorded_once_and_replayed() -> None:
    assert torch.equal(train(Recorded), train(Trainer))


def test_a_step_over_packed_rows_does_not_read_the_device() -> None:
    model, inputs = small(max_documents=8), batch()
    with no_sync():
        loss = model(**inputs)
        assert isinstance(loss, dict)
        loss["loss"].backward()
