"""``xllm serve`` on an encoder, asked by the openai SDK as it comes."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from harness import KEY, Server, running

from tests.fakes.bert import SIZE, write_config, write_sentence_transformers, write_tokenizer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("bert")
    write_config(folder, is_matryoshka=True)
    write_tokenizer(folder)
    write_sentence_transformers(folder, max_len=32)
    with running(folder) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1",
        api_key=KEY,
        http_client=httpx.Client(trust_env=False),
    )


def test_vectors_come_back_as_they_were_asked_for(client: openai.OpenAI) -> None:
    texts = ["hello world", "a cat", "hello world"]
    found = client.embeddings.create(model="tiny", input=texts)  # base64 on the wire
    plain = client.embeddings.create(model="tiny", input=texts, encoding_format="float")
    vectors = np.array([entry.embedding for entry in found.data])
    assert vectors.shape == (3, SIZE)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, 1e-5)
    assert [entry.embedding for entry in plain.data] == vectors.tolist()
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (12, 12)


def test_shorter_vectors_and_token_ids(client: openai.OpenAI) -> None:
    cut = client.embeddings.create(model="tiny", input=[[2, 4, 5, 3]], dimensions=8)
    whole = client.embeddings.create(model="tiny", input="hello world")
    expected = np.array(whole.data[0].embedding[:8])
    np.testing.assert_allclose(
        cut.data[0].embedding, expected / np.linalg.norm(expected), atol=1e-6
    )


def test_refusals_have_a_status_and_a_reason(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the context length of 32"):
        client.embeddings.create(model="tiny", input="cat " * 40)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="cat")
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(openai.BadRequestError, match="does not generate text"):
        client.chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="does not generate text"):
        client.completions.create(model="tiny", prompt="hello")


def test_other_endpoints_and_counts(server: Server) -> None:
    before = server.metrics()
    ranked = server.http.post(
        "/v1/rerank", json={"query": "cat", "documents": ["dog", "cat", "hello"], "top_n": 2}
    ).json()
    assert ranked["results"][0]["index"] == 1
    scored = server.http.post("/score", json={"text_1": "cat", "text_2": "cat"}).json()
    assert scored["data"][0]["score"] == pytest.approx(1.0, abs=1e-5)
    assert server.http.post("/pooling", json={"input": "cat"}).status_code == 200
    assert server.http.post("/classify", json={"input": "cat"}).status_code == 400
    after = server.metrics()
    pooled = "xllm:requests_pooled_total"
    assert after[pooled] - before[pooled] == 5  # three texts, one of a pair of equals, one
    stopped = 'xllm:requests_finished_total{reason="stop"}'
    assert after[stopped] - before[stopped] == 5
