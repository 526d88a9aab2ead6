"""`shoal run --prompt`: one question to the running pipeline, the answer as it comes, and what it cost."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal_cli.tables import facts_table, timing_tables
from shoal_cli.terminal import results

if TYPE_CHECKING:
    from shoal_cli.client import Answer


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and how it is to be answered. `chat` is false for a model without a chat template."""

    prompt: str
    model: str
    max_tokens: int
    temperature: float
    chat: bool

    @property
    def path(self) -> str:
        """The endpoint that takes it."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def body(self) -> dict[str, Any]:
        """The request."""
        common = {"model": self.model, "temperature": self.temperature}
        if self.chat:
            message = {"role": "user", "content": self.prompt}
            return {**common, "messages": [message], "max_completion_tokens": self.max_tokens}
        return {**common, "prompt": self.prompt, "max_tokens": self.max_tokens}


async def ask(url: str, question: Question) -> Answer:
    """Stream the answer to stdout, then print time to first token, speed, and each stage's compute and wait."""
    # Loaded while nobody waits for it: the stages are up by now, and httpx takes a while.
    from shoal_cli.client import Answer, RouterClient

    answer = Answer()
    async with RouterClient(url) as client:
        before = await client.status()
        results().print(f"\n> {question.prompt}", style="bold", soft_wrap=True)
        async for text in client.stream(question.path, question.body, answer):
            # Not through rich: an answer's [brackets] are text, and its lines are broken by the terminal.
            sys.stdout.write(text)
            sys.stdout.flush()
        sys.stdout.write("\n\n")
        after = await client.status()
    results().print(facts_table(_figures(answer)))
    for timings in timing_tables(before, after):
        results().print()
        results().print(timings)
    return answer


def _figures(answer: Answer) -> dict[str, str]:
    speed = answer.tokens_per_second
    first = answer.first_token_s
    return {
        "time to first token": f"{first * 1000:.0f} ms for {answer.prompt_tokens} prompt tokens"
        if first
        else "none came",
        "speed": f"{speed:.1f} tokens/s" if speed else "too short to tell",
        "answer": f"{answer.completion_tokens} tokens, ended by {answer.finish_reason or 'nothing'}",
    }
