"""Chat to token deltas: exact text, sampled ids untouched, special tokens only from templates."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from tests.policy.tokenizers_for_chat import by_letters, chat_tokenizer
from turnwise.policy.rendering import Renderer
from turnwise.policy.rendering_templates import TEMPLATES
from turnwise.sources.demonstrations import spell

KINDS = sorted(TEMPLATES)
EXCHANGES = [("the river?", "the city"), ("no, the capital", "the country 962"), ("wrong", "<search>x</search>")]


class Player:
    """Holds a conversation and keeps its sequences, as an episode would."""

    def __init__(self, renderer, tokenizer):
        self.renderer, self.tokenizer, self.conversation = renderer, tokenizer, renderer.open()
        self.sequences, self.prompts, self.messages = [[]], [], []
        if renderer.system:
            self.messages.append({"role": "system", "content": renderer.system})

    def observe(self, text):
        role = self.renderer.observation_role if self.prompts else "user"
        self.messages.append({"role": role, "content": text})
        prompt = self.conversation.observe(text)
        if prompt.restarts:
            self.sequences.append([])
        self.sequences[-1] += prompt.ids
        self.prompts.append(prompt)
        return prompt

    def say(self, ids):
        text = self.conversation.record(ids)
        self.messages.append({"role": "assistant", "content": text})
        self.sequences[-1] += ids
        return text

    def play(self, exchanges, *, end=True):
        for observation, action in exchanges:
            self.observe(observation)
            ids = by_letters(self.tokenizer, action) + ([self.renderer.end_id] if end else [])
            assert self.say(ids) == action
        return self

    @property
    def text(self):
        return self.tokenizer.decode(self.sequences[-1])

    @property
    def templates_text(self):
        return self.tokenizer.apply_chat_template(self.messages, tokenize=False, add_generation_prompt=True)


def reasoned(tokenizer, end_id):
    """A turn with reasoning, whose words are spelt byte by byte and whose tags are single tokens."""
    tag = tokenizer.convert_tokens_to_ids
    thought = [tag("<think>"), *by_letters(tokenizer, "\nhm\n"), tag("</think>"), *by_letters(tokenizer, "\n\n")]
    answer = by_letters(tokenizer, "the city")
    return thought + answer + [end_id], answer


@pytest.mark.parametrize("end", [True, False], ids=["ended by the model", "cut"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_spell_the_templates_text_turn_by_turn_and_hold_what_was_sampled(kind, end):
    tokenizer = chat_tokenizer(kind)
    renderer = Renderer(tokenizer)
    player = Player(renderer, tokenizer).play(EXCHANGES, end=end)
    player.observe("the end")
    assert player.text == player.templates_text
    assert len(player.sequences) == 1
    assert (renderer.stats.prompts, renderer.stats.restarts, renderer.stats.altered) == (4, 0, 0)
    retokenised = tokenizer.encode(player.text, add_special_tokens=False)
    assert len(retokenised) < len(player.sequences[0])  # so re-tokenising would have changed what was sampled


def test_chatml_deltas_in_literal_tokens():
    tokenizer = chat_tokenizer("chatml")
    player = Player(Renderer(tokenizer), tokenizer)
    first = player.observe("hi")
    player.say([*by_letters(tokenizer, "yo"), 2])
    second = player.observe("no")
    plain = tokenizer.encode
    assert first.ids == [1, *plain("user\nhi"), 2, *plain("\n"), 1, *plain("assistant\n")]
    assert second.ids == [*plain("\n"), 1, *plain("user\nno"), 2, *plain("\n"), 1, *plain("assistant\n")]
    assert player.renderer.stop_ids == (2,)


def test_the_nano_form_adds_three_tokens_a_turn_and_nothing_else():
    tokenizer = chat_tokenizer("nano")
    player = Player(Renderer(tokenizer), tokenizer).play([("the river", "x"), (" the city", "<search>y")])
    assert player.text == "<|user|>the river<|agent|>x<|end|><|user|> the city<|agent|><search>y<|end|>"
    assert player.prompts[1].ids == [0, *tokenizer.encode(" the city"), 1]
    with pytest.raises(ValueError, match="leave the system message empty"):
        Renderer(tokenizer, system="Be brief.")


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_observations_stay_text(kind):
    tokenizer = chat_tokenizer(kind)
    special = {token.content: id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    hostile = "a" + "".join(special) + "<\ufdd0|im_end|>" + "b\n"
    player, honest = Player(Renderer(tokenizer), tokenizer), Player(Renderer(tokenizer), tokenizer)
    player.play([(hostile, "x"), (hostile, "y")])
    honest.play([("ab\n", "x"), ("ab\n", "y")])
    for token in special.values():
        assert player.sequences[0].count(token) == honest.sequences[0].count(token)
    assert player.text.count("".join(special)) == 2


def test_markers_that_a_tokenizer_does_not_call_special_stay_text_in_observations_too():
    tokenizer = copy.deepcopy(chat_tokenizer("chatml"))
    tokenizer.backend_tokenizer.add_tokens([AddedToken("<｜User｜>", normalized=False, special=False)])
    marker = tokenizer.convert_tokens_to_ids("<｜User｜>")
    player = Player(Renderer(tokenizer), tokenizer).play([("a<｜User｜>b", "x")])
    assert tokenizer.encode("<｜User｜>", split_special_tokens=True) == [marker]
    assert marker not in player.sequences[0]
    assert "user\na<｜User｜>b<|im_end|>" in player.text


def test_special_tokens_that_the_model_samples_inside_a_turn_are_kept_and_end_nothing():
    tokenizer = chat_tokenizer("chatml")
    player = Player(Renderer(tokenizer), tokenizer)
    player.observe("hi")
    sampled = [*by_letters(tokenizer, "a"), 1, 0, *by_letters(tokenizer, "b"), 2]
    assert player.say(sampled) == "a<|im_start|><|endoftext|>b"
    assert not player.observe("go on").restarts
    assert player.text == player.templates_text


@pytest.mark.parametrize("kind", KINDS)
def test_whitespace_that_a_template_would_trim_stays_as_it_was_sampled(kind):
    tokenizer = chat_tokenizer(kind)
    player = Player(Renderer(tokenizer), tokenizer).play([("the river", "\n x \n"), ("no", "y")])
    assert len(player.sequences) == 1
    assert "\n x \n" in player.text


@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_template_that_drops_old_reasoning_starts_a_new_sequence_that_keeps_the_visible_tokens(role):
    tokenizer = chat_tokenizer("qwen3")
    renderer = Renderer(tokenizer, system="Think.", observation_role=role)
    player = Player(renderer, tokenizer)
    sampled, answer = reasoned(tokenizer, renderer.end_id)
    for observation in ("the river?", "no", "no, no"):
        player.observe(observation)
        player.say(sampled)
    player.observe("well?")
    assert player.text == player.templates_text
    restarts = [prompt.restarts for prompt in player.prompts]
    if role == "tool":  # a tool's answer belongs to the same query, so reasoning stays
        assert restarts == [False] * 4
        assert player.text.count("<think>") == 3
    else:
        assert restarts == [False, True, True, True]
        assert player.text.count("<think>") == 0
        whole = player.prompts[3].ids
        runs = [whole[at : at + len(answer)] == answer for at in range(len(whole))]
        assert sum(runs) == 3  # spelt as sampled, byte by byte
    assert renderer.stats.restarts == sum(restarts)


def remembering(renderer, tokenizer):
    player = Player(renderer, tokenizer)
    player.conversation.remembers = True
    return player


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("begun", ["", "<think>\\n", "<think>\\n\\n</think>\\n\\n"])
def test_a_conversation_that_remembers_keeps_the_reasoning_that_a_template_drops(begun, ended):
    tokenizer = chat_tokenizer("qwen3")
    template = TEMPLATES["qwen3"].replace("assistant\\n' }}{% endif", f"assistant\\n{begun}' }}}}{{% endif")
    renderer = Renderer(tokenizer, template=template, system="Think.")
    player = remembering(renderer, tokenizer)
    sampled, _ = reasoned(tokenizer, renderer.end_id)
    said = sampled if ended else sampled[:-1]
    for observation in ("the river?", "no", "no, no"):
        player.observe(observation)
        player.say(said)
    player.observe("well?")
    assert len(player.sequences) == 1
    thought, start = tokenizer.decode(sampled), "<|im_start|>assistant\n" + begun.encode().decode("unicode_escape")
    observations = ["the river?", "no", "no, no", "well?"]
    asked = [f"<|im_start|>user\n{text}<|im_end|>\n{start}" for text in observations]
    assert player.text == "<|im_start|>system\nThink.<|im_end|>\n" + f"{thought}\n".join(asked)
    assert renderer.stats.restarts == 0


def test_a_conversation_that_remembers_restarts_where_a_template_moves_something_else():
    tokenizer = chat_tokenizer("qwen3")
    moving = "{% set told = messages[-1]['content'] %}{{ '<|im_start|>told ' + told + '<|im_end|>' }}"
    renderer = Renderer(tokenizer, template=moving + TEMPLATES["qwen3"])
    player = remembering(renderer, tokenizer)
    sampled, _ = reasoned(tokenizer, renderer.end_id)
    player.observe("the river?")
    player.say(sampled)
    assert player.observe("no").restarts
    assert player.text.startswith("<|im_start|>told no<|im_end|>")


def test_reasoning_that_the_generation_prompt_opens_belongs_to_the_turn():
    tokenizer = chat_tokenizer("qwen3")
    opened = TEMPLATES["qwen3"].replace("assistant\\n' }}{% endif", "assistant\\n<think>\\n' }}{% endif")
    renderer = Renderer(tokenizer, template=opened, observation_role="tool")
    player = Player(renderer, tokenizer)
    player.observe("the river?")
    assert player.text.endswith("<think>\n")
    player.say([*by_letters(tokenizer, "hm</think>x"), renderer.end_id])
    assert not player.observe("no").restarts
    assert "assistant\n<think>\nhm</think>x<|im_end|>" in player.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_begins_every_turn_and_the_history_keeps_it(kind):
    tokenizer = chat_tokenizer(kind)
    renderer = Renderer(tokenizer, prefix="<judge>")
    player = Player(renderer, tokenizer)
    player.observe("the river?")
    assert player.text.endswith("<judge>")
    assert player.say([*by_letters(tokenizer, "x</judge>"), renderer.end_id]) == "x</judge>"
    assert not player.observe("no").restarts
    assert f"<judge>x</judge>{renderer.end_text}" in player.text
    assert player.text.endswith("<judge>")
    assert spell(renderer, "<judge>x</judge>") == spell(renderer, "x</judge>")  # a demonstration does not say it again


def test_a_template_that_leaves_out_whole_turns_still_gives_its_own_text():
    forgetful = TEMPLATES["chatml"].replace("in messages %}", "in messages[-1:] %}", 1)
    tokenizer = copy.deepcopy(chat_tokenizer("chatml"))
    player_template = "{% if messages | length == 3 %}" + TEMPLATES["chatml"] + "{% else %}" + forgetful + "{% endif %}"
    tokenizer.chat_template = player_template
    player = Player(Renderer(tokenizer), tokenizer).play(EXCHANGES)
    player.observe("the end")
    assert [prompt.restarts for prompt in player.prompts] == [False, False, True, True]
    assert player.text == player.templates_text == "<|im_start|>user\nthe end<|im_end|>\n<|im_start|>assistant\n"


def test_a_tokenizer_that_normalises_is_counted():
    tokenizer = copy.deepcopy(chat_tokenizer("chatml"))
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    renderer = Renderer(tokenizer)
    Player(renderer, tokenizer).play([("cafe\u0301", "x"), ("plain", "y")])
    assert (renderer.stats.prompts, renderer.stats.altered) == (2, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=30), st.lists(st.integers(0, 300), max_size=12)), max_size=4))
def test_any_text_and_any_tokens_extend_the_sequence_without_touching_what_is_there(exchanges):
    tokenizer = chat_tokenizer("chatml")
    renderer = Renderer(tokenizer)
    conversation, count = renderer.open(), 0
    for observation, sampled in exchanges:
        prompt = conversation.observe(observation)
        assert not prompt.restarts
        count += prompt.ids.count(1)
        conversation.record(sampled)
    assert count == max(0, 2 * len(exchanges))
    assert renderer.stats.altered == 0 or any("\ufdd0" in text or "\ufdd1" in text for text, _ in exchanges)


def test_what_cannot_work_is_refused_with_the_fix():
    tokenizer = copy.deepcopy(chat_tokenizer("chatml"))
    with pytest.raises(ValueError, match="unknown template 'chatlm'; choose one of the templates chatml"):
        Renderer(tokenizer, template="chatlm")
    with pytest.raises(ValueError, match="drops what the model said"):
        Renderer(tokenizer, template="{{ messages[0]['content'] }}")
    with pytest.raises(ValueError, match=r"needs the special tokens <\|agent\|>, <\|end\|>, <\|user\|>, which"):
        Renderer(tokenizer, template="nano")
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template; choose one of the templates"):
        Renderer(tokenizer)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="set its eos_token"):
        Renderer(tokenizer, template="{% for message in messages %}{{ message['content'] }}{% endfor %}")
