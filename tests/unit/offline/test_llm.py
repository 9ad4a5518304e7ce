import pytest

from tests.unit.offline.engine import CONTEXT, TEXT, TOKENIZER, TOKENS, ScriptedEngine, load_text
from xllm import LLM, SamplingParams
from xllm.entrypoints import offline

NUM_TOKENS = len(TOKENS)


@pytest.fixture
def llm(monkeypatch):
    monkeypatch.setattr(offline, "InprocEngine", ScriptedEngine)
    monkeypatch.setattr(offline, "load_text", load_text)
    with LLM("fake", num_kv_tokens=1024) as model:
        yield model


def greedy(max_tokens=NUM_TOKENS, **fields):
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **fields)


def generate(llm, prompts, params=None):
    return llm.generate(prompts, params or greedy(), use_tqdm=False)


def test_outputs_come_in_the_order_of_the_prompts(llm):
    outputs = generate(llm, ["hello", "world", "two"])
    assert [output.prompt for output in outputs] == ["hello", "world", "two"]
    for output in outputs:
        (answer,) = output.outputs
        assert (answer.index, answer.text, answer.token_ids) == (0, TEXT, TOKENS)
        assert (answer.finish_reason, answer.stop_reason) == ("length", None)
        assert output.finished and output.num_cached_tokens == 2
    assert len({output.request_id for output in outputs}) == 3


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [
        ("hello", "hello", TOKENIZER.encode("hello")),
        ([5, 6, 7], None, [5, 6, 7]),
        ({"prompt": "hello"}, "hello", TOKENIZER.encode("hello")),
        ({"prompt_token_ids": [5, 6]}, None, [5, 6]),
    ],
)
def test_a_prompt_is_text_ids_or_a_mapping(llm, prompt, text, ids):
    (output,) = generate(llm, prompt)
    (same,) = generate(llm, [prompt])
    assert output.prompt == same.prompt == text
    assert output.prompt_token_ids == same.prompt_token_ids == ids


def test_a_mapping_without_a_prompt_is_refused(llm):
    with pytest.raises(ValueError, match="prompt_token_ids"):
        generate(llm, [{"text": "hello"}])


def test_each_prompt_may_have_its_own_parameters(llm):
    outputs = generate(llm, ["a", "b"], [greedy(1), greedy(3)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 3]
    with pytest.raises(ValueError, match="1 given for 2 prompts"):
        generate(llm, ["a", "b"], [greedy(1)])


def test_the_longest_answers_begin_first(llm):
    added = []
    llm._engine.add, add = lambda each: (added.extend(each), add(each)), llm._engine.add
    outputs = generate(llm, ["a", "b", "c", "d"], [greedy(n) for n in (1, 3, 2, 3)])
    assert [request.max_tokens for request in added] == [3, 3, 2, 1]
    assert added[0].handle < added[1].handle, "of equal length the earlier first"
    assert [output.prompt for output in outputs] == ["a", "b", "c", "d"]


def test_without_parameters_the_models_own_apply(llm):
    assert llm.default_sampling_params() == SamplingParams(temperature=0.25)
    (output,) = llm.generate("hello", use_tqdm=False)
    assert len(output.outputs[0].token_ids) == SamplingParams().max_tokens


def test_several_choices_are_told_apart(llm):
    (output,) = generate(llm, "hello", greedy(2, n=3))
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert all(answer.token_ids == TOKENS[:2] for answer in output.outputs)


def test_a_stop_string_ends_the_answer_and_the_engines_work(llm):
    (output,) = generate(llm, "hello", greedy(stop=["world"]))
    (answer,) = output.outputs
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("hello ", "stop", "world")
    ((_, choice, stopped),) = llm._engine.aborted
    assert (choice, stopped) == (0, True)


def test_times_are_in_order(llm):
    (output,) = generate(llm, "hello")
    times = output.metrics
    assert times.arrival_time <= times.first_token_time <= times.finished_time


def test_a_failed_sequence_raises_and_the_next_prompt_works(llm):
    with pytest.raises(RuntimeError, match="not a number"):
        generate(llm, [[5], [99]])
    assert generate(llm, "hello")[0].outputs[0].text == TEXT


def test_a_prompt_that_is_too_long_is_refused_naming_the_limit(llm):
    with pytest.raises(ValueError, match=str(CONTEXT)):
        generate(llm, [[5] * (CONTEXT + 1)])


def test_an_interrupt_aborts_what_runs(llm, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(llm._engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate(llm, ["a", "b"])
    assert len(llm._engine.aborted) == 2 and not llm._engine.has_work
    monkeypatch.undo()
    assert llm.stats().num_running == 0


def test_chat_renders_the_template_and_adds_nothing(llm):
    (output,) = llm.chat([{"role": "user", "content": "hello"}], greedy(), use_tqdm=False)
    assert output.prompt == "[user]hello[assistant]"
    assert output.prompt_token_ids == TOKENIZER.encode(output.prompt, add_special_tokens=False)
    assert output.outputs[0].text == TEXT


def test_several_conversations_are_answered_together(llm):
    chats = [[{"role": "user", "content": text}] for text in ("one", "two")]
    outputs = llm.chat(chats, greedy(), use_tqdm=False)
    assert [output.prompt for output in outputs] == ["[user]one[assistant]", "[user]two[assistant]"]


def test_a_chat_may_be_continued(llm):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello wo"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    (output,) = llm.chat(messages, greedy(), use_tqdm=False, **options)
    assert output.prompt == "[user]hi[assistant]hello wo"


def test_closing_gives_the_engine_back(llm):
    llm.close()
    assert llm._engine.closed


def test_any_number_of_prompts_may_queue(llm):
    assert llm._engine.config.scheduler.max_waiting > 1 << 40


def test_a_bar_shows_what_is_done(llm, capsys):
    llm.generate(["a", "b"], greedy())
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{"max_model_len": 0}, {"no_such": 1}, {"dtype": "int3"}])
def test_a_senseless_option_is_refused_by_name(options):
    (name,) = options
    with pytest.raises(ValueError, match=name.replace("_", ".")):
        LLM("fake", **options)


def test_a_model_whose_text_cannot_be_loaded_is_given_back(monkeypatch):
    started = []

    class Engine(ScriptedEngine):
        def start(self):
            started.append(self)
            return super().start()

    def fail(config, files):
        raise ValueError("the model brings no tokenizer")

    monkeypatch.setattr(offline, "InprocEngine", Engine)
    monkeypatch.setattr(offline, "load_text", fail)
    with pytest.raises(ValueError, match="no tokenizer"):
        LLM("fake")
    assert [engine.closed for engine in started] == [True]
