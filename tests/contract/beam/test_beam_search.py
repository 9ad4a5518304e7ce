"""Beam search finds what Hugging Face's ``generate`` finds."""

import pytest
import torch
import transformers

from tests.contract.models.harness import tiny_checkpoint
from tests.e2e.tiny_model import write_tiny_model
from xllm import LLM, BeamSearchParams

PROMPTS = [[5, 17, 200, 31], [90, 91, 92, 93, 94, 95, 96, 97, 98, 99]]
END = 2  # <|im_end|>


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The reference model, and ours of the same weights."""
    folder = write_tiny_model(tmp_path_factory.mktemp("beam"))
    config = transformers.AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = False
    reference = tiny_checkpoint(config, folder)
    with torch.no_grad():  # ends are likely enough to matter
        reference.lm_head.weight[END] *= 1.5
    reference.save_pretrained(folder)
    with LLM(str(folder), num_kv_tokens=1024, num_threads=1, dtype="float32") as model:
        yield reference, model


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -0.5, 2.0])
@pytest.mark.parametrize("width", [2, 4])
def test_beams_are_the_references(pair, width, length_penalty, early_stopping):
    reference, model = pair
    params = BeamSearchParams(
        beam_width=width,
        max_tokens=8,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    for prompt, found in zip(PROMPTS, model.beam_search(PROMPTS, params), strict=True):
        expected = reference.generate(
            torch.tensor([prompt]),
            generation_config=transformers.GenerationConfig(
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=8,
                do_sample=False,
                length_penalty=length_penalty,
                early_stopping=early_stopping,
                eos_token_id=END,
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
            ),
        )
        sequences = [_until_end(row, len(prompt)) for row in expected.sequences.tolist()]
        assert [each.tokens for each in found.sequences] == sequences
        scores = [each.score for each in found.sequences]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)


def test_ends_and_limits_both_occur(pair):
    _, model = pair
    params = BeamSearchParams(beam_width=4, max_tokens=6)
    (found,) = model.beam_search(PROMPTS[0], params)
    assert {each.finish_reason for each in found.sequences} == {"stop", "length"}


def _until_end(tokens, start):
    """Without the padding behind the end token."""
    answer = tokens[start:]
    return tokens[:start] + (answer[: answer.index(END) + 1] if END in answer else answer)
