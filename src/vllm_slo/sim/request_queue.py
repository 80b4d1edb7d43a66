"""The waiting queue: first come first served, or by priority (`request_queue.py`, vLLM 0.32.0)."""

import heapq
from collections import deque
from typing import Protocol

from vllm_slo.sim.config import SchedulingPolicy
from vllm_slo.sim.request import Request


class RequestQueue(Protocol):
    def add(self, request: Request) -> None: ...
    def prepend(self, request: Request) -> None: ...
    def peek(self) -> Request: ...
    def pop(self) -> Request: ...
    def remove(self, request: Request) -> None: ...
    def __len__(self) -> int: ...


class FCFSQueue(deque[Request]):
    """First come first served; a preempted request goes back to the head."""

    add = deque.append
    prepend = deque.appendleft
    pop = deque.popleft

    def peek(self) -> Request:
        return self[0]


class PriorityQueue:
    """By (priority, arrival, id); a preempted request takes its place among the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Request]] = []

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.sort_key, request))

    prepend = add

    def peek(self) -> Request:
        return self._heap[0][1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[1]

    def remove(self, request: Request) -> None:
        self._heap.remove((request.sort_key, request))
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    return PriorityQueue() if policy == "priority" else FCFSQueue()
