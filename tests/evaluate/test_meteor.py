"""METEOR and Porter's stemmer: by hand, and against nltk."""

import random
from pathlib import Path

import pytest

import turnwise.envs.games
from turnwise.evaluate.meteor import meteor, split_words
from turnwise.evaluate.porter import stem

TEXT = (
    "Relational caresses agreed plastered motoring conflated troubled sizing hopping falling filing happy skies "
    "conditional rational hesitancy digitizer conformably radically differently vilely analogously vietnamization "
    "predication operator feudalism decisiveness hopefulness callousness formality sensitivity sensibility triplicate "
    "formative formalize electricity electrical hopeful goodness revival allowance inference airliner gyroscopic "
    "adjustable defensible irritant replacement adjustment dependent adoption homologous communism activate angularity "
    "effective bowdlerize probate rate cease controlling roll geology theology feed bleed sing toy syzygy ivy oaten by"
)


class NoSynonyms:
    """In place of nltk's WordNet, which needs a download."""

    def synsets(self, word: str) -> list[str]:
        return []


def nltk_stemmer():
    porter = pytest.importorskip("nltk.stem.porter", reason="needs nltk")
    return porter.PorterStemmer(mode=porter.PorterStemmer.MARTIN_EXTENSIONS)


def many_words() -> list[str]:
    listed = (Path(turnwise.envs.games.__file__).parent / "words.txt").read_text().split()
    rng, endings = random.Random(0), ("s", "ed", "ing", "ies", "ization", "fulness", "ement", "ally", "eed", "ll", "e")
    made = [word[: rng.randint(1, len(word))] + rng.choice(endings) for word in listed]
    return [*TEXT.lower().split(), *listed, *made]


def test_stems_by_hand():
    stems = {"relational": "relat", "hopping": "hop", "filing": "file", "agreed": "agre", "ponies": "poni", "by": "by"}
    assert {word: stem(word) for word in stems} == stems


def test_stems_are_nltks():
    reference, words = nltk_stemmer(), many_words()
    assert len(words) > 2000
    assert {word: stem(word) for word in words} == {word: reference.stem(word) for word in words}


def test_meteor_by_hand():
    words = ["the", "film", "was", "good"]
    assert meteor(words, words) == pytest.approx(1 - 0.5 / 4**3)
    # Three matches, "played" and "plays" by their stem, in two chunks; P = 3/4, R = 3/5.
    score = meteor(["it", "plays", "good", "songs"], ["it", "played", "really", "good", "music"])
    assert score == pytest.approx((0.75 * 0.6 / (0.9 * 0.75 + 0.1 * 0.6)) * (1 - 0.5 * (2 / 3) ** 3))
    assert meteor(words, ["nothing", "alike"]) == meteor([], words) == meteor(words, []) == 0


def test_meteor_is_nltks_on_random_texts():
    reference, porter = pytest.importorskip("nltk.translate.meteor_score", reason="needs nltk"), nltk_stemmer()
    rng, words = random.Random(1), many_words()[:40]
    for _ in range(500):
        pool = rng.sample(words, rng.randint(2, 12))
        first, second = ([rng.choice(pool) for _ in range(rng.randint(1, 15))] for _ in range(2))
        theirs = reference.single_meteor_score(second, first, stemmer=porter, wordnet=NoSynonyms())
        assert meteor(first, second) == pytest.approx(theirs, abs=1e-12)


def test_words_are_split_at_blanks_and_punctuation():
    assert split_words("It's FUN, really.\n") == ["it", "'", "s", "fun", ",", "really", "."]
