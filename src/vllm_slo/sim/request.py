"""`Request`: one request as the scheduler sees it, counts in place of token ids."""

from enum import Enum, auto

Prompt = tuple[tuple[int, int], ...]


class RequestStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


class Request:
    """A request in the engine, under vLLM's names (`vllm/v1/request.py`, 0.32.0).

    `request_id` orders requests that tie in priority and arrival. `prompt` names its tokens as
    (key, tokens) segments, the first tokens of that key; empty is a prompt of its own.
    `shared_hashes` are the block hashes of the leading prompt blocks that other requests may
    share, in order (`prefix.py`); the blocks after them hold tokens of this request alone.

    The output length is forced: a request stops at `max_tokens` or at max_model_len.

    `token_steps` are the steps that gave it a token, as the first and last of each unbroken run.
    """

    __slots__ = (
        "arrival_time",
        "cached_private",
        "finish_step",
        "first_implicit_step",
        "held_shared",
        "is_prefill_chunk",
        "max_outputs",
        "max_tokens",
        "num_blocks",
        "num_cached_blocks",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_stale_output_tokens",
        "offset",
        "order",
        "priority",
        "prompt",
        "queued_s",
        "request_id",
        "scheduled_s",
        "sent_s",
        "shared_hashes",
        "status",
        "token_steps",
    )

    def __init__(
        self,
        request_id: int,
        *,
        num_prompt_tokens: int,
        max_tokens: int,
        arrival_time: float = 0.0,
        priority: int = 0,
        prompt: Prompt = (),
        shared_hashes: tuple[int, ...] = (),
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.arrival_time = arrival_time
        self.priority = priority
        self.prompt = prompt
        self.shared_hashes = shared_hashes
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.num_preemptions = 0
        self.is_prefill_chunk = False
        # Asynchronous scheduling: tokens that are scheduled and whose output is not here yet.
        self.num_output_placeholders = 0
        self.num_in_flight_tokens = 0
        self.num_stale_output_tokens = 0
        # KV blocks: held, and how many of them, from the first, are in the prefix cache.
        self.num_blocks = 0
        self.num_cached_blocks = 0
        self.held_shared: list[SharedBlock] = []
        self.cached_private: PrivateBlocks | None = None
        # What the loop notes: times in seconds of virtual time.
        self.token_steps: list[int] = []
        self.sent_s = 0.0
        self.queued_s = 0.0
        self.scheduled_s: float | None = None
        # What implicit decoding notes (`implicit.py`).
        self.order = 0
        self.max_outputs = max_tokens
        self.offset = 0
        self.first_implicit_step = 0
        self.finish_step = 0

    def note_token(self, step: int) -> None:
        """Notes that `step` gives a token."""
        steps = self.token_steps
        if steps and steps[-1] == step - 1:
            steps[-1] = step
        else:
            steps += (step, step)

    @property
    def num_tokens(self) -> int:
        """Prompt and outputs so far."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def sort_key(self) -> tuple[int, float, int]:
        """The order of the priority policy (`Request.__lt__`)."""
        return self.priority, self.arrival_time, self.request_id

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}, {self.status.name.lower()}, "
            f"computed {self.num_computed_tokens} of {self.num_tokens})"
        )


class SharedBlock:
    """One cached block whose tokens other requests may have too."""

    __slots__ = ("block_hash", "ref_cnt")

    def __init__(self, block_hash: int) -> None:
        self.block_hash = block_hash
        self.ref_cnt = 1


class PrivateBlocks:
    """Freed cached blocks that only one request can hit again: it was preempted, or is done.

    `count` are still in the cache; eviction takes the last of them first.
    """

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count
