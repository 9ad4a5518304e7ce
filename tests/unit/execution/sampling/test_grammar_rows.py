"""Constrained rows: the padded part of a vocabulary, and where in a run of tokens a grammar is."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tests.unit.execution.sampling.helpers import CPU, Bench
from xllm.core.grammar import GrammarCache, GrammarCompiler, Vocabulary
from xllm.core.messages.worker import RowSampling
from xllm.core.request.sampling import SamplingParams
from xllm.core.request.structured import StructuredOutput
from xllm.execution.sampling import RowRequest, Sampler
from xllm.execution.sampling.grammar.row import GrammarRow

EOS = 256
VOCAB_SIZE = 257  # bytes and an end; logits are wider
BYTES = [*(bytes([i]) for i in range(256)), b"<eos>"]


def grammars() -> GrammarCache:
    vocabulary = Vocabulary(BYTES, {EOS}, [EOS], lambda text: list(text.encode()))
    return GrammarCache(lambda: GrammarCompiler(vocabulary))


class GrammarBench(Bench):
    """The bench with grammars."""

    def __init__(self) -> None:
        super().__init__(VOCAB_SIZE)
        self.grammars = grammars()
        self.sampler = Sampler(64, VOCAB_SIZE, CPU, self.grammars)

    def constrain(self, row: int, output: StructuredOutput, **params) -> None:
        known = np.array([5], np.int32)
        self.tokens[row, 0], self.lengths[row], self.prompt_lens[row] = 5, 1, 1
        self.grammars.submit(output).future.result()
        sampling = RowSampling(SamplingParams(**params), 7, (), (), output)
        self.sampler.add_request(RowRequest(row, sampling, known, 1))


@pytest.mark.parametrize("width", [VOCAB_SIZE + 1, 288, 320, 512])
def test_padding_of_the_vocabulary_is_never_sampled_nor_given_to_a_grammar(width):
    """SO-23: the largest logits lie in the padding; greedy, drawn, constrained or not."""
    bench = GrammarBench()
    regex = StructuredOutput("regex", "[0-9]{3}-[0-9]{2}")
    bench.constrain(0, regex, temperature=0.0, max_tokens=99)
    bench.constrain(1, regex, temperature=2.0, max_tokens=99)
    bench.add(2, [5], temperature=0.0)
    bench.add(3, [5], temperature=5.0, top_p=0.9)
    torch.manual_seed(0)
    logits = torch.randn(4, width)
    logits[:, VOCAB_SIZE:] = 99.0
    for _ in range(7):
        tokens = bench.sample([0, 1, 2, 3], logits).token_ids
        assert int(tokens.max()) < VOCAB_SIZE
    assert not bench.sampler.failures
    for row in (0, 1):
        *text, end = bench.tokens[row, 1:8].tolist()
        assert re.fullmatch(rb"[0-9]{3}-[0-9]{2}", bytes(text)) and end == EOS


THOUGHTS = "Is it {1}? "
TAG = "</t>"


@pytest.mark.parametrize("by_text", [True, False])
@pytest.mark.parametrize("num_after", range(5))
@pytest.mark.parametrize("num_before", [0, 1, len(THOUGHTS)])
def test_a_grammar_begins_behind_the_thoughts_inside_a_run(by_text, num_after, num_before):
    """RP-07: one run holds the end of the thoughts and the beginning of the form."""
    form = "[42]"
    after = {"after_text": TAG} if by_text else {"after_token_ids": tuple(TAG.encode())}
    output = StructuredOutput("json_schema", '{"type":"array"}', compact=True, **after)
    grammar = grammars().submit(output).future.result()
    row = GrammarRow(output, grammar)
    thoughts = THOUGHTS[len(THOUGHTS) - num_before :]
    row.replay((thoughts + TAG + form[:num_after]).encode())
    assert row.begun and row.failure is None
    # What follows is the rest of the form, to the letter, and nothing else.
    for char in form[num_after:].encode():
        assert not row.matcher.deep_copy().consume_tokens([ord("}")])
        assert row.matcher.consume_tokens([char])
    assert row.matcher.is_accepting()


def test_a_run_that_breaks_the_form_fails_its_row():
    output = StructuredOutput("json_schema", '{"type":"array"}', after_text=TAG)
    row = GrammarRow(output, grammars().submit(output).future.result())
    row.replay(f"free {TAG}nonsense".encode())
    assert row.failure is not None


def test_rows_tell_their_grammar_how_much_was_sampled():
    """Lexers grow with it, and it is what a grammar is judged by: see ``Grammar.worn``."""
    bench = GrammarBench()
    output = StructuredOutput("regex", "[ab]*")
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[:, ord("a")] = 9.0
    compilation = bench.grammars.submit(output)
    grammar = compilation.future.result()
    for row in (0, 1):
        bench.constrain(row, output, temperature=0.0)
        for _ in range(5):
            bench.sample([row], logits)
        told = grammar.num_tokens
        bench.sampler.remove(row)
        assert 4 <= grammar.num_tokens - told <= 5  # the last one may not be known yet
    assert not grammar.worn
    size = compilation.num_bytes
    bench.constrain(2, output, temperature=0.0)
    # A token that it does not allow, as if its lexer were full.
    for _ in range(2):
        bench.sample([2], logits)
        bench.sampler._grammar._sampled.tokens[:] = ord("z")
    bench.sample([2], logits)
    assert 2 in bench.sampler.failures
    bench.sampler.remove(2)
    assert grammar.worn and compilation.num_bytes > size
