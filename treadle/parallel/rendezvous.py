"""Meeting the other processes of a group that torchrun has started again."""

import json
import os
import time
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed as dist

CALL = "treadle/call"
POLL_SECONDS = 0.05


def store_outlives_processes() -> bool:
    """Whether the store by which processes find each other is torchrun's, and so older than a restarted group."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def join_rendezvous(rank: int, size: int, timeout: timedelta) -> Any:
    """Connect to torchrun's store and return a part of it that this group of processes has to itself."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, size, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    return own_part(store, rank, size, timeout)


def own_part(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Agree with the other ranks on a part of `store` that no earlier group used.

    The addresses that killed processes left in the store are still there when torchrun has started them again, and a
    rank that reads one waits for a dead peer. How often the group was started is no word to tell them apart by: each
    machine counts for itself. So the first rank calls with a word of its own, the others answer with one of theirs,
    and only where the first rank repeats its answer does a rank know that both belong together.

    Raises:
        TimeoutError: The first rank did not come in time; where others did not, torch raises an error of its own.
    """
    own = uuid.uuid4().hex
    part = _call(store, own, size, timeout) if rank == 0 else _answer(store, own, rank, timeout)
    return dist.PrefixStore(f"treadle/{part}", store)  # type: ignore[attr-defined]


def _call(store: Any, word: str, size: int, timeout: timedelta) -> str:
    store.set(CALL, word)
    answers = {str(rank): _answer_key(word, rank) for rank in range(1, size)}
    store.wait(list(answers.values()), timeout)
    store.set(_heard_key(word), json.dumps({rank: store.get(key).decode() for rank, key in answers.items()}))
    return word


def _answer(store: Any, own: str, rank: int, timeout: timedelta) -> str:
    deadline = time.monotonic() + timeout.total_seconds()
    answered = ""
    store.wait([CALL], timeout)
    while time.monotonic() < deadline:
        word: str = store.get(CALL).decode()
        # A word of an earlier group is answered as well: whether its caller lives shows when it repeats the answer.
        if word != answered:
            store.set(_answer_key(word, rank), own)
            answered = word
        if store.check([_heard_key(word)]) and json.loads(store.get(_heard_key(word))).get(str(rank)) == own:
            return word
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"rank 0 did not answer rank {rank} within {timeout}; look into what it printed")


def _answer_key(word: str, rank: int) -> str:
    return f"treadle/{word}/answer_{rank}"


def _heard_key(word: str) -> str:
    return f"treadle/{word}/heard"
