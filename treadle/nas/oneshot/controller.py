"""A network that makes architectures: it decides one thing after the other, knowing what it decided before."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from treadle.nas.space.decisions import Architecture, Decision, Subset
from treadle.nas.space.model_space import Space

TANH_CONSTANT = 1.5
SKIP_TARGET = 0.4


class Token(NamedTuple):
    """One draw of the controller.

    Attributes:
        label: The decision it is a part of.
        size: Between how many it draws.
        position: Which of the draws of that decision it is.
        gate: Whether it draws if a tensor is taken or left out.
    """

    label: str
    size: int
    position: int = 0
    gate: bool = False


class Drawn(NamedTuple):
    """What a controller drew.

    Attributes:
        places: The outcome of each draw.
        log_probability: The logarithm of how likely all of them were together.
        entropy: How undecided it was, summed over the draws.
        skip_penalty: How far from its target it takes tensors where it may take any number.
    """

    places: Tensor
    log_probability: Tensor
    entropy: Tensor
    skip_penalty: Tensor


def decision_tokens(decision: Decision) -> list[Token]:
    """Return the draws that a decision takes."""
    if not isinstance(decision, Subset):
        return [Token(decision.label, decision.count)]
    size = len(decision.candidates)
    if decision.chosen is None:
        return [Token(decision.label, 2, place, gate=True) for place in range(size)]
    return [Token(decision.label, size, place) for place in range(decision.chosen)]


class Controller(nn.Module):
    """An LSTM that draws the decisions of a space one after the other.

    Args:
        space: The space.
        hidden_size: How wide it is.
        num_layers: How many LSTM cells are stacked.
        tanh_constant: How sure of itself it can be at most.
        skip_target: How often it should take a tensor where it may take any number.

    Attributes:
        baseline: What reward is to be expected, on the device.
    """

    baseline: Tensor
    started: Tensor

    def __init__(
        self,
        space: Space,
        hidden_size: int = 64,
        num_layers: int = 1,
        *,
        tanh_constant: float = TANH_CONSTANT,
        skip_target: float = SKIP_TARGET,
    ) -> None:
        super().__init__()
        self._space = (space,)
        self.tokens = [token for decision in space.decisions.values() for token in decision_tokens(decision)]
        self._tanh_constant, self._skip_target = tanh_constant, skip_target
        widths = {token.label: token.size for token in self.tokens}
        self._first = {label: 1 + sum(list(widths.values())[:place]) for place, label in enumerate(widths)}
        self.embedding = nn.Embedding(1 + sum(widths.values()), hidden_size)
        self.cells = nn.ModuleList(nn.LSTMCell(hidden_size, hidden_size) for _ in range(num_layers))
        self._heads = {label: str(place) for place, label in enumerate(widths)}
        self.heads = nn.ModuleDict({self._heads[label]: nn.Linear(hidden_size, size) for label, size in widths.items()})
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("started", torch.zeros(()))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    @property
    def most(self) -> int:
        """The largest number of outcomes of a draw."""
        return max(token.size for token in self.tokens)

    def start(self, count: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the input of the first draw, and the state before it, for `count` architectures."""
        weight = self.embedding.weight
        nothing = weight.new_zeros(count, weight.shape[1])
        return self.embedding.weight[:1].expand(count, -1), [(nothing, nothing) for _ in self.cells]

    def step(
        self, token: Token, inputs: Tensor, states: list[tuple[Tensor, Tensor]], taken: Sequence[Tensor]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the logarithms of the probabilities of a draw, and the state after it.

        Args:
            token: The draw.
            inputs: What was drawn before it, embedded.
            states: The state of each cell.
            taken: What was drawn for the same decision already, and cannot be drawn again.
        """
        after: list[tuple[Tensor, Tensor]] = []
        for cell, state in zip(self.cells, states, strict=True):
            after.append(cell(inputs, state))
            inputs = after[-1][0]
        logits: Tensor = self._tanh_constant * torch.tanh(self.heads[self._heads[token.label]](inputs))
        if taken and not token.gate:
            logits = logits.scatter(1, torch.stack(list(taken), dim=1), -torch.inf)
        return logits.log_softmax(-1), after

    def embedded(self, token: Token, places: Tensor) -> Tensor:
        """Return the input of the draw after one with these outcomes."""
        embedded: Tensor = self.embedding(places + self._first[token.label])
        return embedded

    def draw(self, noise: Tensor) -> Drawn:
        """Draw an architecture.

        Args:
            noise: Gumbel noise, a row for each draw: what is random in it.
        """
        places, chosen, entropies, penalties = [], [], [], []
        for token, logs, place in self._draws(noise):
            places.append(place)
            chosen.append(logs.gather(1, place.unsqueeze(1)).sum())
            entropies.append(-(logs.exp() * logs.nan_to_num(neginf=0.0)).sum())
            if token.gate:
                penalties.append(self._distance_to_target(logs[0, 1]))
        penalty = torch.stack(penalties).mean() if penalties else self.embedding.weight.new_zeros(())
        return Drawn(torch.cat(places), torch.stack(chosen).sum(), torch.stack(entropies).sum(), penalty)

    def _draws(self, noise: Tensor | None = None) -> Iterator[tuple[Token, Tensor, Tensor]]:
        """Yield each draw of one architecture with the logarithms and the outcome: without noise, the likeliest."""
        inputs, states = self.start(1)
        places: list[Tensor] = []
        for number, token in enumerate(self.tokens):
            logs, states = self.step(token, inputs, states, places[number - token.position : number])
            places.append((logs if noise is None else logs + noise[number, : token.size]).argmax(-1))
            yield token, logs, places[-1]
            inputs = self.embedded(token, places[-1])

    def _distance_to_target(self, log: Tensor) -> Tensor:
        """Return how far the probability of taking a tensor is from its target, as a divergence."""
        probability, target = log.exp().clamp(1e-6, 1 - 1e-6), self._skip_target
        taken = probability * (probability / target).log()
        return taken + (1 - probability) * ((1 - probability) / (1 - target)).log()

    def decoded(self, places: Sequence[int]) -> Architecture:
        """Return the architecture that the outcomes of all draws mean."""
        drawn: dict[str, list[int]] = {}
        for token, place in zip(self.tokens, places, strict=True):
            drawn.setdefault(token.label, []).append(int(place))
        return self._space[0].decide(lambda decision: _value(decision, drawn))

    @torch.no_grad()
    def best(self, count: int) -> list[tuple[float, Architecture]]:
        """Return the most likely architectures that a beam of several times `count` finds, best first."""
        width = max(16, 4 * count)
        inputs, states = self.start(1)
        scores = inputs.new_zeros(1)
        history: list[Tensor] = []
        for token in self.tokens:
            own = history[len(history) - token.position :] if token.position else []
            logs, states = self.step(token, inputs, states, own)
            totals = (scores.unsqueeze(1) + logs).reshape(-1)
            kept = min(width, int(torch.isfinite(totals).sum()))
            scores, order = totals.topk(kept)
            parents, places = order // token.size, order % token.size
            history = [one[parents] for one in history] + [places]
            states = [(hidden[parents], memory[parents]) for hidden, memory in states]
            inputs = self.embedded(token, places)
        rows = torch.stack(history, dim=1).tolist()
        return [(float(score), self.decoded(row)) for score, row in zip(scores.tolist(), rows, strict=True)]

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Return what is drawn between: a row for each decision, and for each tensor that may be taken or left out."""
        decisions = self._space[0].decisions
        firsts = [token for token in self.tokens if token.gate or token.position == 0]
        return {_row(one): (False, True) if one.gate else decisions[one.label].candidates for one in firsts}

    @torch.no_grad()
    def probabilities(self) -> dict[str, list[float]]:
        """Return how likely each outcome of `rows` is, with everything before as the likeliest architecture has it."""
        found: dict[str, list[float]] = {}
        for token, logs, _ in self._draws():
            found.setdefault(_row(token), logs[0].double().exp().tolist())
        return found

    @torch.no_grad()
    def expect(self, reward: Tensor, decay: float) -> Tensor:
        """Move the baseline towards a reward, and return it; the first one is its beginning."""
        reward = reward.detach().to(self.baseline.dtype)
        moved = torch.where(self.started > 0, self.baseline * decay + reward * (1 - decay), reward)
        self.baseline.copy_(moved)
        self.started.fill_(1.0)
        return self.baseline.clone()


def _row(token: Token) -> str:
    return f"{token.label}/{token.position}" if token.gate else token.label


def _value(decision: Decision, drawn: Mapping[str, list[int]]) -> Any:
    own = drawn[decision.label]
    if not isinstance(decision, Subset):
        return decision.candidates[own[0]]
    return [place for place, taken in enumerate(own) if taken] if decision.chosen is None else sorted(own)
