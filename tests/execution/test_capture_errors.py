"""What the errors of a recording mean, in words."""

import pytest

from treadle.errors import CaptureError
from treadle.execution.cuda_graph.capture_errors import explain

CAUSES = {
    "CUDA error: operation not permitted when stream is capturing": "the host wait for the device (.item()",
    "called a synchronizing CUDA operation": "the host wait for the device (.item()",
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.": (
        "the step copies between host and device (.cpu(), torch.tensor(..., device=), .cuda()); make the tensor once"
    ),
    "Attempting CUDA graph capture of step() for an instance of AdamW but param_groups' capturable is False.": (
        "the optimizer's step cannot be recorded; use one with capturable=True, such as AdamW"
    ),
    "LBFGS.step() missing 1 required positional argument: 'closure'": "an optimizer with a closure, such as LBFGS",
    "Attempt to increase offset for a CUDA generator not in capture mode.": (
        "a generator of your own draws in the step; make it an attribute of the model or the trainer"
    ),
    "transform: failed to synchronize: cudaErrorStreamCaptureUnsupported": "a sparse product or sparse optimizer",
    "CUDA error: would make the legacy stream depend on a capturing blocking stream": (
        "something keeps the graph of an earlier step alive"
    ),
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": "a library allocates in its first call",
    "CUDA out of memory. Tried to allocate 2.00 GiB.": "there is not enough memory for a recorded step",
    "Cannot prepare for replay during capturing stage.": "compile='reduce-overhead' records by itself; use",
}


def raised(text: str) -> RuntimeError:
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("text", CAUSES)
def test_a_cause_is_told_with_its_remedy_its_line_and_its_words(text: str) -> None:
    told = str(explain(raised(text)))
    assert CAUSES[text] in told
    assert "at test_capture_errors.py:" in told
    assert told.endswith(f"(RuntimeError: {text})")


def test_a_cause_that_nobody_knows_is_told_in_its_own_words() -> None:
    assert str(explain(raised("\n\nsomething else\nand more"))).startswith(
        "RuntimeError: something else; at test_capture_errors"
    )


def followed(first: Exception) -> RuntimeError:
    """Return the error with which a recording ends after another one, as torch raises it."""
    try:
        try:
            raise first
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        return error


def test_the_error_at_the_end_of_a_recording_gives_way_to_the_one_that_came_first() -> None:
    first = RuntimeError("CUDA error: operation not permitted when stream is capturing")
    assert str(explain(followed(first))).endswith(f"(RuntimeError: {first})")


def test_what_is_explained_already_stays_as_it_is() -> None:
    known = CaptureError("the step reads trainer.progress.step")
    assert explain(followed(known)) is known
