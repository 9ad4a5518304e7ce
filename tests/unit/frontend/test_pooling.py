"""The pooling service over an engine whose vectors a test dictates."""

from __future__ import annotations

import asyncio
import base64
import dataclasses

import msgspec
import numpy as np
import pytest

from tests.fakes.bert import CLS, SEP, WORDS, write_tokenizer
from tests.fakes.engine_client import FakeEngineClient, batch, row
from xllm.core.config.files import PoolingSpec
from xllm.core.config.server import ServerConfig
from xllm.core.messages.server import OutputBatch, PooledColumns
from xllm.core.request.finish import FinishReason
from xllm.frontend.intake import Limits, PoolingFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.output import OutputProcessor
from xllm.frontend.protocol import pooling as protocol
from xllm.frontend.protocol.decode import decode_request
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.services import OutputDispatcher, PoolingService
from xllm.frontend.text.loading import tokenizer_from_file

HELLO, WORLD, CAT, DOG = (WORDS.index(word) for word in ("hello", "world", "cat", "dog"))
EMBED = PoolingSpec(task="embed", method="mean", whole_prompts=True, size=4, normalize=True)
CLASSIFY = PoolingSpec(
    task="classify",
    method="cls",
    whole_prompts=True,
    size=2,
    labels=("no", "yes"),
    activation="softmax",
)
RANKER = dataclasses.replace(CLASSIFY, size=1, labels=("relevant",), activation="sigmoid")
SCHEMAS = {
    "embed": protocol.EmbeddingRequest,
    "pool": protocol.PoolingRequest,
    "classify": protocol.ClassificationRequest,
    "score": protocol.ScoreRequest,
    "rerank": protocol.RerankRequest,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    write_tokenizer(folder)
    return tokenizer_from_file(str(folder / "tokenizer.json"), {})


class Stack:
    """A service; ``answer`` maps a request's token ids to its raw vector."""

    def __init__(self, tokenizer, spec, answer=None, max_len=12) -> None:
        self.client = FakeEngineClient()
        self.answer = answer or (lambda ids: [3.0, 4.0, 0.0, float(len(ids))])
        limits = Limits.from_config(ServerConfig(max_prompts=5), max_len, len(WORDS))
        factory = None if spec is None else PoolingFactory(tokenizer, limits, spec)
        self.dispatcher = OutputDispatcher(self.client, OutputProcessor(tokenizer))
        self.service = PoolingService(factory, self.dispatcher, ServedModels("tiny"))

    def ask(self, method: str, **body):
        """The decoded answer of the service."""
        return asyncio.run(asyncio.wait_for(self._ask(method, body), 10))

    async def _ask(self, method, body):
        request = decode_request(SCHEMAS[method], msgspec.json.encode(body))
        task = asyncio.ensure_future(getattr(self.service, method)(request))
        while not self.client.requests and not task.done():
            await asyncio.sleep(0)  # long texts are tokenized in a thread
        for each in reversed(self.client.requests):  # in any order
            vector = self.answer(each.prompt_token_ids.tolist())
            self.client._sink.deliver(self._batch(each.handle, vector))
            await asyncio.sleep(0)
        result = msgspec.json.decode(msgspec.json.encode(await task))
        self.dispatcher.check()
        assert self.dispatcher.num_open == 0
        return result

    @staticmethod
    def _batch(handle, vector) -> OutputBatch:
        pooled = PooledColumns(np.array([handle]), np.array([vector], np.float32))
        ended = batch(row(handle, finish=FinishReason.STOP))
        return msgspec.structs.replace(ended, pooled=pooled)

    @property
    def prompts(self):
        return [request.prompt_token_ids.tolist() for request in self.client.requests]


def refusal(stack, method, **body) -> RequestError:
    with pytest.raises(RequestError) as caught:
        stack.ask(method, **body)
    assert not stack.client.requests, "nothing may reach the engine"
    return caught.value


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hello world", [[CLS, HELLO, WORLD, SEP]]),
        (["hello", "cats"], [[CLS, HELLO, SEP], [CLS, CAT, WORDS.index("##s"), SEP]]),
        ([CLS, DOG, SEP], [[CLS, DOG, SEP]]),
        ([[DOG], [CAT, CAT]], [[DOG], [CAT, CAT]]),
    ],
)
def test_embeddings_of_texts_and_ids(tokenizer, given, prompts):
    stack = Stack(tokenizer, EMBED)
    answer = stack.ask("embed", model="tiny", input=given)
    assert stack.prompts == prompts
    assert all(r.max_tokens == 0 and r.params.max_tokens == 0 for r in stack.client.requests)
    for entry, prompt in zip(answer["data"], prompts, strict=True):
        expected = np.array([3.0, 4.0, 0.0, len(prompt)])
        np.testing.assert_allclose(entry["embedding"], expected / np.linalg.norm(expected), 1e-6)
        assert entry["object"] == "embedding"
    assert [entry["index"] for entry in answer["data"]] == list(range(len(prompts)))
    total = sum(map(len, prompts))
    assert answer["usage"] == {"prompt_tokens": total, "total_tokens": total}


@pytest.mark.parametrize(("lowercase", "first"), [(True, HELLO), (False, WORDS.index("[UNK]"))])
def test_texts_are_lowercased_for_models_that_want_it(tokenizer, lowercase, first):
    stack = Stack(tokenizer, dataclasses.replace(EMBED, lowercase=lowercase))
    stack.ask("embed", input=["HELLO world"])
    assert stack.prompts == [[CLS, first, WORLD, SEP]]


def test_base64_is_little_endian_float32(tokenizer):
    floats = Stack(tokenizer, EMBED).ask("embed", input="cat")["data"][0]["embedding"]
    coded = Stack(tokenizer, EMBED).ask("embed", input="cat", encoding_format="base64")
    decoded = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    assert decoded.tolist() == floats


@pytest.mark.parametrize("name", ["use_activation", "normalize"])
def test_an_embedding_without_its_norm_is_what_the_model_computed(tokenizer, name):
    (whole,) = Stack(tokenizer, EMBED).ask("embed", input="cat")["data"]
    (plain,) = Stack(tokenizer, EMBED).ask("embed", input="cat", **{name: False})["data"]
    raw = np.array(plain["embedding"])
    assert abs(np.linalg.norm(raw) - 1) > 0.1
    np.testing.assert_allclose(raw / np.linalg.norm(raw), whole["embedding"], 1e-6)


def test_dimensions_are_cut_before_the_norm(tokenizer):
    spec = dataclasses.replace(EMBED, dimensions=(2,))
    (entry,) = Stack(tokenizer, spec).ask("embed", input="cat", dimensions=2)["data"]
    np.testing.assert_allclose(entry["embedding"], [0.6, 0.8], 1e-6)


@pytest.mark.parametrize(
    ("allowed", "asked", "message"),
    [
        (None, 2, "dimensions must be 4: the model's embeddings are not made to be cut"),
        ((), 0, "dimensions must be between 1 and 4, got 0"),
        ((), 5, "dimensions must be between 1 and 4, got 5"),
        ((2,), 3, "dimensions must be one of 2, got 3"),
    ],
)
def test_dimensions_that_mean_nothing_are_refused(tokenizer, allowed, asked, message):
    stack = Stack(tokenizer, dataclasses.replace(EMBED, dimensions=allowed))
    error = refusal(stack, "embed", input="cat", dimensions=asked)
    assert error.status == 400 and error.param == "dimensions"
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": []}, "input", "input must have between 1 and 5 entries, got 0"),
        ({"input": ["cat"] * 6}, "input", "input must have between 1 and 5 entries, got 6"),
        ({"input": ["cat", 3]}, "input", "input must hold only strings, only ids"),
        ({"input": [[]]}, "input", "input must contain at least one token"),
        ({"input": [99]}, "input", "input must hold token ids between 0 and 11, got 99"),
        ({"input": "cat " * 11}, "input", "input has 13 tokens, which exceeds the context"),
        (
            {"input": "cat", "truncate_prompt_tokens": 13},
            "truncate_prompt_tokens",
            "truncate_prompt_tokens must be -1 or between 1 and 12, got 13",
        ),
        (
            {"input": "cat", "truncate_prompt_tokens": 2},
            "input",
            "input",  # two special tokens and no text: still a prompt
        ),
        ({"input": "cat", "encoding_format": "int8"}, "encoding_format", "encoding_format: "),
        ({"input": "cat", "embed_dtype": "float16"}, "embed_dtype", "embed_dtype: "),
        ({"input": "cat", "endianness": "big"}, "endianness", "endianness: "),
        ({"input": "cat", "truncation_side": "left"}, "truncation_side", "truncation_side: "),
        ({"input": "cat", "request_id": "x" * 129}, "request_id", "request_id must have at most"),
        ({"input": "cat", "priority": 1 << 40}, "priority", "priority must be between"),
        ({"input": 3}, "input", "input: "),
    ],
)
def test_bad_requests_are_refused(tokenizer, body, param, message):
    if message == "input":
        assert Stack(tokenizer, EMBED).ask("embed", **body)["usage"]["total_tokens"] == 2
        return
    error = refusal(Stack(tokenizer, EMBED), "embed", **body)
    assert error.status == 400 and error.param == param and error.message.startswith(message)


@pytest.mark.parametrize(("asked", "length"), [(-1, 12), (5, 5), (12, 12)])
def test_truncation_keeps_the_first_tokens_and_the_frame(tokenizer, asked, length):
    stack = Stack(tokenizer, EMBED)
    stack.ask("embed", input="hello " + "cat " * 400, truncate_prompt_tokens=asked)
    (prompt,) = stack.prompts
    assert prompt == [CLS, HELLO, *[CAT] * (length - 3), SEP]


def test_models_refuse_what_they_cannot_do(tokenizer):
    for spec, method, body in (
        (None, "embed", {"input": "cat"}),
        (None, "rerank", {"query": "cat", "documents": ["dog"]}),
        (EMBED, "classify", {"input": "cat"}),
        (CLASSIFY, "embed", {"input": "cat"}),
        (CLASSIFY, "score", {"text_1": "cat", "text_2": "dog"}),
        (CLASSIFY, "pool", {"input": "cat", "dimensions": 2}),
    ):
        assert refusal(Stack(tokenizer, spec), method, **body).status == 400
    assert refusal(Stack(tokenizer, EMBED), "embed", input="cat", model="other").status == 404


def test_classification_names_the_best_label(tokenizer):
    stack = Stack(tokenizer, CLASSIFY, lambda ids: [0.0, float(np.log(3.0)) * (ids[1] == CAT)])
    answer = stack.ask("classify", input=["cat", "dog"])
    first, second = answer["data"]
    assert (first["label"], first["num_classes"]) == ("yes", 2)
    np.testing.assert_allclose(first["probs"], [0.25, 0.75], 1e-6)
    np.testing.assert_allclose(second["probs"], [0.5, 0.5], 1e-6)
    raw = Stack(tokenizer, CLASSIFY, lambda ids: [-2.0, 5.0])
    (entry,) = raw.ask("classify", input="cat", use_activation=False)["data"]
    assert entry["probs"] == [-2.0, 5.0]


def test_pooling_answers_with_what_the_model_computes(tokenizer):
    (entry,) = Stack(tokenizer, CLASSIFY, lambda ids: [1.0, 1.0]).ask("pool", input="cat")["data"]
    assert entry["data"] == [0.5, 0.5] and entry["object"] == "pooling"
    raw = Stack(tokenizer, EMBED).ask("pool", input="cat", use_activation=False)
    assert raw["data"][0]["data"] == [3.0, 4.0, 0.0, 3.0]


def test_a_cross_encoder_reads_pairs(tokenizer):
    stack = Stack(tokenizer, RANKER, lambda ids: [float(np.log(3.0)) if DOG in ids else 0.0])
    answer = stack.ask("score", text_1="cat", text_2=["dog", "hello world"])
    assert stack.prompts == [[CLS, CAT, SEP, DOG, SEP], [CLS, CAT, SEP, HELLO, WORLD, SEP]]
    assert [request.second_start for request in stack.client.requests] == [3, 3]
    np.testing.assert_allclose([e["score"] for e in answer["data"]], [0.75, 0.5], 1e-6)


def test_pairs_need_a_second_token_type_where_the_tokenizer_gives_one(tokenizer, tmp_path):
    one_type = dataclasses.replace(RANKER, num_token_types=1)
    error = refusal(Stack(tokenizer, one_type), "score", text_1="cat", text_2="dog")
    assert error.status == 400 and error.message.startswith("text_2 cannot be read beside text_1")
    error = refusal(Stack(tokenizer, one_type), "rerank", query="cat", documents=["dog"])
    assert error.status == 400 and "documents" in error.message

    # transformers gives such a model no types, and all tokens are of type 0 then.
    write_tokenizer(tmp_path)
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    untyped = tokenizer_from_file(str(tmp_path / "tokenizer.json"), inputs)
    stack = Stack(untyped, one_type, lambda ids: [0.0])
    stack.ask("score", text_1="cat", text_2="dog")
    assert stack.prompts == [[CLS, CAT, SEP, DOG, SEP]]
    assert [request.second_start for request in stack.client.requests] == [0]


def test_pairs_are_cut_at_the_longer_text(tokenizer):
    for first, second, kept in ((1, 9, (1, 6)), (9, 1, (6, 1)), (9, 9, (4, 3)), (2, 2, (2, 2))):
        stack = Stack(tokenizer, RANKER, lambda ids: [0.0])
        texts = {"text_1": "cat " * first, "text_2": "dog " * second}
        stack.ask("score", **texts, truncate_prompt_tokens=10)
        (prompt,) = stack.prompts
        assert (prompt.count(CAT), prompt.count(DOG)) == kept


def test_embeddings_are_scored_by_their_cosine_and_repeated_texts_run_once(tokenizer):
    vectors = {HELLO: [1.0, 0.0, 0.0, 0.0], CAT: [3.0, 4.0, 0.0, 0.0], DOG: [0.0, -2.0, 0.0, 0.0]}
    stack = Stack(tokenizer, EMBED, lambda ids: vectors[ids[1]])
    answer = stack.ask("score", text_1=["hello", "hello", "cat"], text_2=["cat", "hello", "dog"])
    assert len(stack.prompts) == 3
    scores = [entry["score"] for entry in answer["data"]]
    np.testing.assert_allclose(scores, [0.6, 1.0, -0.8], 1e-6)
    stack = Stack(tokenizer, EMBED)
    error = refusal(stack, "score", text_1=["cat", "dog"], text_2=["cat"] * 3)
    assert error.param == "text_1" and "as many as text_2 (3), got 2" in error.message
    assert refusal(stack, "score", text_1="cat", text_2=[]).param == "text_2"


def _ranker(tokenizer) -> Stack:
    values = {CAT: 2.0, DOG: 5.0, HELLO: 2.0, WORLD: -1.0}
    return Stack(tokenizer, RANKER, lambda ids: [values[ids[3]]])


@pytest.mark.parametrize(("top_n", "order"), [(None, [1, 0, 2, 3]), (0, [1, 0, 2, 3]), (2, [1, 0])])
def test_rerank_orders_by_relevance(tokenizer, top_n, order):
    documents = ["cat", {"text": "dog"}, "hello", "world"]
    answer = _ranker(tokenizer).ask("rerank", query="the", documents=documents, top_n=top_n)
    assert [result["index"] for result in answer["results"]] == order
    assert answer["results"][0]["document"] == {"text": "dog"}
    relevance = [result["relevance_score"] for result in answer["results"]]
    assert relevance == sorted(relevance, reverse=True) and 0.99 < relevance[0] < 1
    assert answer["usage"]["total_tokens"] == 20 and answer["model"] == "tiny"


def test_rerank_leaves_documents_out_and_refuses_negative_counts(tokenizer):
    answer = _ranker(tokenizer).ask(
        "rerank", query="the", documents=["cat"], return_documents=False
    )
    assert answer["results"][0].keys() == {"index", "relevance_score"}
    error = refusal(_ranker(tokenizer), "rerank", query="the", documents=["cat"], top_n=-1)
    assert error.param == "top_n"
    error = refusal(_ranker(tokenizer), "rerank", query="the", documents=[])
    assert error.param == "documents"


def test_a_vector_that_is_not_finite_fails_its_request_alone(tokenizer):
    stack = Stack(tokenizer, EMBED, lambda ids: [1.0, float("nan"), 0.0, 0.0])
    with pytest.raises(RequestError, match="not finite") as caught:
        stack.ask("embed", input="cat")
    assert caught.value.status == 500


def test_a_cancelled_call_aborts_its_requests(tokenizer):
    stack = Stack(tokenizer, EMBED)

    async def cancel():
        body = decode_request(protocol.EmbeddingRequest, b'{"input": ["cat", "dog"]}')
        task = asyncio.ensure_future(stack.service.embed(body))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    handles = [request.handle for request in stack.client.requests]
    assert stack.client.aborted == [(handle, -1, False) for handle in handles]
    assert len(handles) == 2
    stack.dispatcher.check()


def test_word_pieces_are_joined(tokenizer):
    ids = tokenizer.encode("hello cats.")
    assert [WORDS[i] for i in ids] == ["[CLS]", "hello", "cat", "##s", ".", "[SEP]"]
    assert tokenizer.decode(ids) == "hello cats ."
