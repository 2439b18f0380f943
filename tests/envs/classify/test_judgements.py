"""The tag protocol and the rewards of classification."""

import pytest

from turnwise.envs.classify.judgements import LabelGrading, NumberGrading, find_label, judgement


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("<Judgement>yes</Judgement>", "yes"),
        ("yes</Judgement>", "yes"),  # the chat template has opened the tag
        ("<analysis>no idea</analysis><judgement> Yes </JUDGEMENT> and more", "Yes"),
        ("<Judgement>no<Judgement>yes</Judgement><Judgement>no</Judgement>", "yes"),
        ("<Judgement>yes", None),
        ("yes", None),
        ("", None),
        ("a" * 1000 + "</Judgement>", None),
    ],
)
def test_only_the_text_before_the_first_closing_tag_counts(action: str, text: str | None):
    assert judgement(action) == text


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Not spam.", "not_spam"),
        ("it is NOT-SPAM", "not_spam"),
        ("spam!", "spam"),
        ("spam, spam", "spam"),
        ("spam or not_spam", None),
        ("spammer", None),
        ("", None),
        (None, None),
    ],
)
def test_an_answer_names_one_label_or_none(text: str | None, label: str | None):
    assert find_label(text, ["spam", "not_spam"]) == label


@pytest.mark.parametrize("label", ["-1", "0", "1", "+", "-"])
def test_a_sign_is_part_of_a_label(label: str):
    assert find_label(label, ["-1", "0", "1", "+", "-"]) == label


def test_labels_earn_as_in_the_paper():
    rewards = [
        LabelGrading().grade(action, "a", ["a", "b"])[1]
        for action in ("a</Judgement>", "b</Judgement>", "a b</Judgement>", "c</Judgement>", "a")
    ]
    assert rewards == [1.0, -1.0, -3.0, -3.0, -3.0]


def test_numbers_earn_two_and_a_half_less_the_error_and_never_less_than_no_number():
    rewards = [
        NumberGrading().grade(f"{answer}</Judgement>", "3.0")[1] for answer in ("3", "3.4", "0", "9999", "-", "1 or 2")
    ]
    assert rewards == pytest.approx([2.5, 2.1, -0.5, -2.5, -2.5, -2.5])
    assert [NumberGrading().grade(f"{x}</Judgement>", "3")[4]["success"] for x in (3.5, 3.6)] == [True, False]
