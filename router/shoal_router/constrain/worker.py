"""A process that compiles grammars for the router, whose event loop feels nothing of what a grammar does to it.

    stdin   {"form": …, "text": …, "param": …, "thought": …, …}      one Constraint a line, as JSON
    stdout  {"grammar": …} or {"refused": …}                           one line for each, and {"ready": ""} before

A grammar is compiled and asked for its first mask, as a stage will be. What takes too much time for that is refused, as
is what llguidance cannot do; what hangs, the router ends by killing the process. The kernel bounds its memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from shoal.errors import ShoalError
from shoal.grammar import first_line, matcher_of, tokenizer_of
from shoal.parent import die_with_parent
from shoal.wire.messages import LARGEST_GRAMMAR
from shoal_router.constrain.constraint import Constraint, Form, GrammarRefused, Thought, grammar_of

CPU_SECONDS = 0.5
"""To compile a grammar and make its first mask. A stage does the same while its other sequences wait."""

_ADDRESS_SPACE = 768 << 20
"""Three times what the process has when it starts; a pod of the router has 1 GiB for all of itself."""


def compiled(tokenizer: LLTokenizer, constraint: Constraint) -> str:
    """The grammar, proved to work. Raises GrammarRefused."""
    grammar = grammar_of(constraint)
    if len(grammar.encode()) > LARGEST_GRAMMAR:
        raise GrammarRefused(f"too large: {len(grammar.encode())} bytes as a grammar, {LARGEST_GRAMMAR} are taken")
    began = time.process_time()
    matcher = matcher_of(tokenizer, grammar)
    if not matcher.is_error():
        mask = matcher.compute_bitmask()
        if not matcher.is_error() and not any(mask):
            raise GrammarRefused("nothing satisfies it")
    if matcher.is_error():
        raise GrammarRefused(first_line(matcher.get_error()))
    if (took := time.process_time() - began) > CPU_SECONDS:
        raise GrammarRefused(f"too complex: it takes {took:.1f} s to compile, {CPU_SECONDS} s are allowed")
    return grammar


def constraint_of(line: str) -> Constraint:
    """A line of stdin."""
    fields: dict[str, Any] = json.loads(line)
    return Constraint(**{**fields, "form": Form(fields["form"]), "thought": Thought(fields["thought"])})


def main(argv: Sequence[str]) -> int:
    """`worker DIR VOCAB_SIZE STOP_ID…`: serve stdin until it ends."""
    die_with_parent()
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    try:
        tokenizer = tokenizer_of(Path(argv[0]), int(argv[1]), tuple(map(int, argv[2:])))
    except ShoalError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    _say({"ready": ""})
    for line in sys.stdin:
        try:
            _say({"grammar": compiled(tokenizer, constraint_of(line))})
        except GrammarRefused as error:
            _say({"refused": str(error)})
    return 0


def _say(answer: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
