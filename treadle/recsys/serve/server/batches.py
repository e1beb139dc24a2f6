"""Requests that wait are answered together, by one thread."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from treadle.errors import TreadleError
from treadle.recsys.serve.answers import Answers
from treadle.recsys.serve.queries import Query
from treadle.recsys.serve.server.statistics import Statistics

MOST_TOGETHER = 64
"""How many requests are answered at once."""
MOST_WAITING = 2048
"""How many may wait; who comes then is to come again."""
Answer = tuple[list[dict[str, Any]], bool]
"""The items of a list, and whether it is what is popular."""


class OverloadedError(TreadleError):
    """More requests wait than can be answered in time."""


class Asked:
    """A request that waits.

    Attributes:
        query: What is asked for.
        k: How many items.
        popular: Whether somebody unknown gets what is popular.
        answer: Where the answer is put.
    """

    def __init__(self, query: Query, k: int, *, popular: bool) -> None:
        self.query, self.k, self.popular = query, k, popular
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()


class Batcher:
    """Answers requests as soon as the model is free: those that have come meanwhile together.

    Nobody waits for a batch to be filled. The model is looked at by one thread alone, and a batch is answered by the
    recommender that was there when it began, whatever becomes of it meanwhile.

    Args:
        current: Returns the recommender of the moment.
        statistics: Where it is counted.
        together: How many requests are answered at once.
        waiting: How many may wait.
    """

    def __init__(
        self,
        current: Callable[[], Answers],
        statistics: Statistics,
        *,
        together: int = MOST_TOGETHER,
        waiting: int = MOST_WAITING,
    ) -> None:
        self._current, self._statistics = current, statistics
        self._together, self._most = together, waiting
        self._waiting: list[Asked] = []
        self._there = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="treadle-recommend")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop; requests that wait still are answered before, by whoever waits for them."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=True)

    async def ask(self, query: Query, k: int, *, popular: bool, patience: float) -> Answer:
        """Return the answer to a query.

        Raises:
            OverloadedError: Too many wait, or it took too long.
            TreadleError: The query cannot be answered.
        """
        if len(self._waiting) >= self._most:
            # Who has given up waiting takes no place.
            self._waiting = [one for one in self._waiting if not one.answer.done()]
        if len(self._waiting) >= self._most:
            raise OverloadedError(f"{self._most} requests wait already; come again in a second")
        asked = Asked(query, k, popular=popular)
        self._waiting.append(asked)
        self._there.set()
        try:
            return await asyncio.wait_for(asked.answer, patience)
        except TimeoutError:
            raise OverloadedError(f"no answer within {patience:g} seconds; come again in a second") from None

    async def call(self, work: Callable[[Answers], Any], patience: float) -> Any:
        """Return what `work` makes of the recommender, in the thread that looks at the model.

        Raises:
            OverloadedError: It took too long.
        """
        current = self._current()
        done = asyncio.get_running_loop().run_in_executor(self._thread, work, current)
        try:
            return await asyncio.wait_for(done, patience)
        except TimeoutError:
            raise OverloadedError(f"no answer within {patience:g} seconds; come again in a second") from None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._there.wait()
            self._there.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[: self._together], self._waiting[self._together :]
                # Who has given up waiting is not answered.
                batch = [one for one in batch if not one.answer.done()]
                if batch:
                    began = time.perf_counter()
                    found = await loop.run_in_executor(self._thread, answer_batch, self._current(), batch)
                    self._statistics.batch(len(batch), time.perf_counter() - began)
                    for one, result in zip(batch, found, strict=True):
                        _give(one, result)


def _give(asked: Asked, result: Answer | Exception) -> None:
    if asked.answer.done():
        return
    if isinstance(result, Exception):
        asked.answer.set_exception(result)
    else:
        asked.answer.set_result(result)


def answer_batch(recommender: Answers, batch: Sequence[Asked]) -> list[Answer | Exception]:
    """Return an answer, or what is wrong, for each of some requests; one that is wrong harms no other."""
    results: dict[int, Answer | Exception] = {}
    good = []
    for place, one in enumerate(batch):
        try:
            good.append((place, _checked(recommender, one)))
        except Exception as error:  # who asked is told, and the others are answered
            results[place] = error
    try:
        if good:
            results |= _answered(recommender, batch, good)
    except Exception as error:
        if len(good) == 1:
            results[good[0][0]] = error
        else:
            results |= {place: answer_batch(recommender, [batch[place]])[0] for place, _ in good}
    return [results[place] for place in range(len(batch))]


class UnknownUserError(TreadleError):
    """The model knows nothing of a user, and there is no history."""


def _checked(recommender: Answers, one: Asked) -> Any:
    checked = recommender.check([one.query])[0]
    if checked.history is None and not one.popular:
        known = recommender.users.ids.get(str(one.query.user), 0)
        if not bool(recommender.can_score(_ids(recommender, known))[0]):
            raise UnknownUserError(
                f"the model knows nothing of the user {str(one.query.user)!r}; give a history, or popular: true for "
                "what is popular"
            )
    return checked


def _ids(recommender: Answers, user: int) -> Any:
    import torch

    return torch.tensor([user], device=recommender.device)


def _answered(
    recommender: Answers, batch: Sequence[Asked], good: list[tuple[int, Any]]
) -> dict[int, Answer | Exception]:
    lists = recommender.answer([checked for _, checked in good], max(batch[place].k for place, _ in good))
    found: dict[int, Answer | Exception] = {}
    scores = lists.scores.tolist()
    for row, (place, _) in enumerate(good):
        items = []
        for rank in range(batch[place].k):
            if token := lists.items[row, rank]:
                entry: dict[str, Any] = {"item": str(token), "score": scores[row][rank]}
                if batch[place].query.explain:
                    entry["because"] = lists.because[row][rank]
                items.append(entry)
        found[place] = items, bool(lists.cold[row])
    return found
