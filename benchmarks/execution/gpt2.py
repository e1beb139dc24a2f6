"""GPT-2 124M: tokens per second, and the share of the device's arithmetic that they use, by hand and with Treadle.

The loop by hand runs between the epochs of Treadle's run, so that both are measured in turn, each with its own model,
from the same weights and over the same batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.execution.session import Findings
from benchmarks.execution.work import Clock

PEAK = 989e12
"""What the vendor says that an H200 does in dense bf16, in operations per second."""
PARAMETERS = 124.4e6
"""Of GPT-2 with its own vocabulary of 50,257; the padded one has a few more, which do not count."""
COMPILE_BAR, MFU_BAR = 0.99, 0.49
CLIP_NORM = 1.0
MINIMAL_ROUNDS = 3

Batch = tuple[Tensor, Tensor]
Step = Callable[[Batch], None]


@dataclass(frozen=True)
class Size:
    """How large the model and its batches are."""

    vocabulary: int = 50304
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    batch: int = 16
    tuned_batch: int = 64

    def flops_per_token(self) -> float:
        """Return the operations for one token, forward and backward: 6N + 12LDT."""
        return 6 * PARAMETERS + 12 * self.layers * self.width * self.context


TINY = Size(vocabulary=96, context=16, layers=2, heads=2, width=32, batch=2, tuned_batch=4)


@dataclass(frozen=True)
class Setting:
    """One way to train, by hand and with Treadle.

    Args:
        name: What to call it.
        batch: Sequences in a batch.
        tuned: Whether the head is fused, the residual stream in bf16 and the GELU an approximation.
        execution: Treadle's.
        compiled: Whether the whole model is compiled.
        steps: Steps of an epoch.
        rounds: Timed epochs.
        seconds: How long it takes at most, roughly, if nothing is compiled yet.
    """

    name: str
    batch: int
    tuned: bool
    execution: str
    compiled: bool
    steps: int
    rounds: int
    seconds: float


def settings(size: Size) -> list[Setting]:
    """Return what is measured, the most important first."""
    return [
        Setting("compile", size.batch, False, "compile", True, steps=20, rounds=10, seconds=75),
        Setting("tuned: graph, compiled trunk, fused head", size.tuned_batch, True, "graph", False, 10, 6, seconds=60),
        Setting("eager", size.batch, False, "eager", False, steps=10, rounds=5, seconds=20),
    ]


def measure(findings: Findings) -> None:
    """Check the fused head, then time each setting as long as there is time."""
    options = findings.options
    size = TINY if options.smoke else Size()
    findings.data |= {"peak": PEAK, "flops_per_token": size.flops_per_token(), "settings": {}}
    check_head(findings, size)
    for setting in settings(size):
        if not findings.has_time(0 if options.smoke else setting.seconds / 2):
            findings.skip(setting.name, "no time left")
            continue
        findings.attempt(setting.name, partial(measure_setting, findings, size, setting))
        findings.save()
        if options.captures:
            torch.cuda.empty_cache()
    findings.data["complete"] = not findings.data["missing"]


def make_model(size: Size, device: torch.device, seed: int, *, tuned: bool, fused_head: bool) -> nn.Module:
    """Return the model of the examples, with the same weights for the same seed."""
    gpt = import_module("examples.language_model.gpt")
    tuning: dict[str, Any] = {"gelu": "tanh", "residual_dtype": "bfloat16"} if tuned else {}
    if fused_head:
        tuning["head"] = import_module("benchmarks.contenders.treadle_execution").FusedHead
    # Drawn on the device: on the host it would take seconds.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        model: nn.Module = gpt.GPT(size.vocabulary, size.context, size.layers, size.heads, size.width, **tuning)
    return model.train()


def make_optimizer(model: nn.Module, *, capturable: bool = False) -> torch.optim.Optimizer:
    """Return fused AdamW with the usual settings."""
    options: dict[str, Any] = {"capturable": True} if capturable else {}
    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True, **options)


def make_batches(size: Size, sequences: int, device: torch.device, seed: int, count: int) -> list[Batch]:
    """Draw batches of random tokens, each with the one that follows it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, sequences, size.context + 1)
    tokens = torch.randint(size.vocabulary, shape, generator=generator).to(device)
    return [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in tokens]


def ready_loader(batches: list[Batch]) -> DataLoader[Batch]:
    """Return a loader of batches that are ready."""
    return DataLoader(batches, batch_size=None, shuffle=False)  # type: ignore[arg-type]


# By hand ----------------------------------------------------------------------------------------------------------


class HandLoop:
    """The loop by hand: autocast, backward, clip, step; compiled, or captured whole, if the setting asks for it.

    Args:
        model: The model, which returns its own loss.
        setting: How.
        batches: The batches of an epoch.
        clock: Times epochs.
        captures: Whether anything can be compiled and captured here.
    """

    def __init__(
        self, model: nn.Module, setting: Setting, batches: list[Batch], clock: Clock, *, captures: bool
    ) -> None:
        self._batches, self._clock = batches, clock
        self._model = model
        captured = setting.execution == "graph" and captures
        self._optimizer = make_optimizer(model, capturable=captured)
        self._parameters = list(model.parameters())
        self._forward: Any = model
        if setting.compiled and captures:
            self._forward = torch.compile(model, dynamic=False)
        self._step: Step = self._plain_step
        if captured:
            self._step = self._capture(batches[0])

    def epoch(self) -> None:
        """Train one epoch, timed."""
        self._clock.begin()
        for batch in self._batches:
            self._step(batch)
        self._clock.end()

    def _plain_step(self, batch: Batch) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
            loss = self._forward(*batch)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, CLIP_NORM, foreach=True)
        self._optimizer.step()

    def _capture(self, batch: Batch) -> Step:
        """Capture the whole step, with the trunk compiled, and return what copies a batch in and replays it."""
        graphs = import_module("benchmarks.execution.graphs")
        self._model.get_submodule("trunk").compile(dynamic=False)
        tokens, targets = (part.clone() for part in batch)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with graphs.restored(self._model, self._optimizer):
            graphs.on_side_stream(stream, lambda: self._plain_step((tokens, targets)), graphs.WARM_UP)
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._plain_step((tokens, targets))

        def step(batch: Batch) -> None:
            tokens.copy_(batch[0])
            targets.copy_(batch[1])
            graph.replay()

        return step


# Both -------------------------------------------------------------------------------------------------------------


def measure_setting(findings: Findings, size: Size, setting: Setting) -> None:
    """Time the loop by hand and Treadle in turn, and compare what they have learnt."""
    options = findings.options
    steps, rounds = (3, 1) if options.smoke else (setting.steps, setting.rounds)
    # Capturing is a matter of the first epoch, and takes four steps before it is done.
    batches = make_batches(size, setting.batch, options.device, options.seed, max(steps, 6))
    hand_clock, clock = Clock(options.device), Clock(options.device)
    hand_model, model = (
        make_model(size, options.device, options.seed, tuned=setting.tuned, fused_head=setting.tuned) for _ in range(2)
    )
    loop = HandLoop(hand_model, setting, batches, hand_clock, captures=options.captures)
    treadle = import_module("benchmarks.contenders.treadle_execution")
    gpu = options.captures
    found = {
        "batch": setting.batch,
        "steps": len(batches),
        "tokens": setting.batch * size.context * len(batches),
        "hand_s": hand_clock.seconds,
        "treadle_s": clock.seconds,
    }
    findings.data["settings"][setting.name] = found

    def train_by_hand() -> bool:
        if len(clock.seconds) > MINIMAL_ROUNDS and not findings.has_time():
            return False
        loop.epoch()
        findings.save()
        findings.say(f"{setting.name}: {len(clock.seconds)} of {rounds + 1} epochs done")
        return True

    treadle.train_language_model(
        model,
        make_optimizer(model),
        ready_loader(batches),
        clock,
        execution=setting.execution if gpu else "eager",
        compile=_compile_argument(treadle, setting) if gpu else False,
        epochs=rounds + 1,
        before=train_by_hand,
    )
    difference = abs(final_loss(hand_model, batches[0]) / final_loss(model, batches[0]) - 1)
    findings.check(f"{setting.name}: loss of both after {len(clock.seconds) * len(batches)} steps", difference, 1e-2)


def _compile_argument(treadle: Any, setting: Setting) -> Any:
    if setting.tuned:
        return treadle.TRUNK
    return setting.compiled


@torch.no_grad()
def final_loss(model: nn.Module, batch: Batch) -> float:
    """Return the loss of one batch; nothing is compiled for it anew."""
    with torch.compiler.set_stance("force_eager"), torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
        return float(model(*batch)["loss"])


def check_head(findings: Findings, size: Size) -> None:
    """Compare loss and gradient of the fused head with those of the plain one, on the same weights."""
    options = findings.options
    batch = make_batches(size, 4, options.device, options.seed, 1)[0]
    results = []
    for fused in (False, True):
        result = findings.attempt(f"head, fused={fused}", partial(head_result, findings, size, fused, batch))
        if result is None:
            return
        results.append(result)
    (loss, gradient), (fused_loss, fused_gradient) = results
    findings.check("fused head against plain: loss", abs(fused_loss / loss - 1), 1e-3)
    distance = (fused_gradient - gradient).norm() / gradient.norm()
    findings.check("fused head against plain: gradient of all weights", distance.item(), 2e-2)


def head_result(findings: Findings, size: Size, fused: bool, batch: Batch) -> tuple[float, Tensor]:
    """Return the loss of a batch and its gradient."""
    options = findings.options
    model = make_model(size, options.device, options.seed, tuned=True, fused_head=fused)
    with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
        loss = model(*batch)["loss"]
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return float(loss), nn.utils.parameters_to_vector(gradients)
