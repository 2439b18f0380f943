"""Training data: made-up worlds turned into chats, tokens and packed rows, saved to a compressed file."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from turnwise.envs.games.guess_number import GuessNumber
from turnwise.envs.search.geo import ASKS, PLACES
from turnwise.envs.search.protocol import INVALID, LAST_TURN, NOTHING_FOUND, ask
from turnwise.nano.demonstrator import WORDINGS, play
from turnwise.nano.fixed_rows import Packed, pack_rows
from turnwise.nano.guesser import play_guess_number
from turnwise.nano.problems import make_env
from turnwise.nano.reading_data import read
from turnwise.nano.tokenizer import load_tokenizer, render, train_tokenizer
from turnwise.nano.worlds import FACTS, Lexicon, make_name, make_world, train_lexicon

EPISODES = {1: 60, 2: 180, 3: 60}
"""Number of search episodes per world, by hops."""
READINGS, GAMES = 150, 15
_TOKENIZER_NAMES = 60_000
_TOKENIZER_WORLDS = 4


@dataclass(frozen=True, kw_only=True)
class Chats:
    """What one world was used for, as text, and how many of its search episodes succeeded."""

    texts: list[str]
    episodes: int
    successes: int


def make_chats(lexicon: Lexicon, seed: int, number: int) -> Chats:
    """The chats of world `number`; equal seeds give equal chats in any process."""
    rng = Random(f"nano:{seed}:{number}")
    world = make_world(lexicon, rng)
    played = [
        play(env, rng, seed=rng.getrandbits(32))
        for hops, count in EPISODES.items()
        for env in [make_env(world, hops)]
        for _ in range(count)
    ]
    games = [play_guess_number(rng, seed=rng.getrandbits(32))[0] for _ in range(GAMES)]
    readings = [read(world, rng) for _ in range(READINGS)]
    texts = [render(turns) for turns in [*(turns for turns, _ in played), *games, *readings]]
    rng.shuffle(texts)
    return Chats(texts=texts, episodes=len(played), successes=sum(success for _, success in played))


def make_tokenizer(lexicon: Lexicon, seed: int) -> PreTrainedTokenizerFast:
    """A tokenizer trained on a few worlds' chats, and on many more names so that names become few pieces."""
    rng = Random(f"nano:{seed}:tokenizer")
    chats = [text for number in range(_TOKENIZER_WORLDS) for text in make_chats(lexicon, seed, -1 - number).texts]
    names = [make_name(lexicon, rng) for _ in range(_TOKENIZER_NAMES)]
    return train_tokenizer([*_fixed_texts(), *chats, *lexicon.words, *names])


def write_data(folder: Path, *, seed: int, worlds: int, row_length: int, processes: int) -> Packed:
    """Make tokenizer and rows, and save both in the folder; prints what it made."""
    lexicon = train_lexicon()
    tokenizer = make_tokenizer(lexicon, seed)
    tokenizer.save_pretrained(folder)
    successes, episodes, sequences = 0, 0, list[NDArray[np.uint16]]()
    for done, (ids, chats) in enumerate(_in_processes(lexicon, folder, seed, worlds, processes), start=1):
        sequences += [sequence for sequence in ids if len(sequence) <= row_length]
        successes, episodes = successes + chats.successes, episodes + chats.episodes
        if done % 20 == 0 or done == worlds:
            print(f"data: world {done}/{worlds}, demonstrator success {successes / episodes:.3f}", flush=True)
    packed = pack_rows(sequences, row_length, renamable=_renamable(tokenizer))
    packed.save(folder)
    return packed


def _in_processes(
    lexicon: Lexicon, folder: Path, seed: int, worlds: int, processes: int
) -> Iterator[tuple[list[NDArray[np.uint16]], Chats]]:
    work = partial(_make_sequences, lexicon, folder, seed)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(work, range(worlds))


def _make_sequences(lexicon: Lexicon, folder: Path, seed: int, number: int) -> tuple[list[NDArray[np.uint16]], Chats]:
    chats = make_chats(lexicon, seed, number)
    encoded = load_tokenizer(folder)(chats.texts, add_special_tokens=False)["input_ids"]
    return [np.asarray(ids, dtype=np.uint16) for ids in encoded], chats


def _renamable(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Tokens that only occur in names: those that begin a word, and those that continue one."""
    fixed = {token for text in _fixed_texts() for token in tokenizer(text, add_special_tokens=False)["input_ids"]}
    words = {token: text for text, token in tokenizer.get_vocab().items() if re.fullmatch("Ġ?[A-Za-z]+", text)}
    free = [token for token in sorted(words) if token not in fixed]
    starts = [token for token in free if words[token].startswith("Ġ")]
    return starts, sorted(set(free) - set(starts))


def _fixed_texts() -> Sequence[str]:
    """All wording that is not a name."""
    asks = [template.format(place="") for templates in ASKS.values() for template in templates]
    places = [template.format("", "") for templates in PLACES.values() for template in templates]
    wordings = [wording.format(name="", fact="", word="") for wording in WORDINGS]
    documents = [" : country in ; city in ; population k", *(f" ; {fact}" for fact in FACTS)]
    game = GuessNumber(high=10)
    talk = [game.deal(Random(0)), *(game.play(guess).text for guess in range(11))]
    protocol = [INVALID, LAST_TURN, NOTHING_FOUND, ask("", style="terse", searches=1), "Turns left: 3.", "\\boxed{7}"]
    return [*asks, *places, *wordings, *documents, *talk, *protocol]
