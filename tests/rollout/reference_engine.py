"""An engine and a scorer that are too simple to be wrong: one full forward pass per token, one sequence at a time."""

import random
from contextlib import nullcontext

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.batch import Scores
from turnwise.engine.contract import Completion, Finish


def tiny_llama(vocabulary, *, seed=0):
    """A random Llama with opinions: wide initial weights make some tokens far likelier than others."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.25,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


class PlainEngine:
    """What the contract asks of an engine besides sessions, where there is nothing to do."""

    lockstep = False
    busy_seconds = 0.0

    def publish(self, weights, version): ...

    def paused(self):
        return nullcontext()

    def expect(self, requests): ...

    def shutdown(self): ...


class ReferenceEngine(PlainEngine):
    """Draws each token by a number that depends on seed, session and position alone."""

    def __init__(self, model, *, tokenizer=None, context=1024, seed=0):
        self.model, self.tokenizer, self.context, self.seed = model, tokenizer, context, seed
        self.version = 0
        self.sessions = {}
        self.closed = []

    @property
    def capacity(self):
        return self.context

    async def generate(self, session, new_ids, params):
        ids = self.sessions.setdefault(session, [])
        ids += new_ids
        sampled, logprobs, finish = [], [], None
        if len(ids) >= self.context:
            finish = Finish.CONTEXT_FULL
        while finish is None:
            token, logprob = self.sample(session, ids, params)
            ids.append(token)
            sampled.append(token)
            logprobs.append(logprob)
            finish = self.finish(ids, sampled, params)
        return Completion(ids=sampled, logprobs=logprobs, versions=[self.version] * len(sampled), finish=finish)

    @torch.no_grad()
    def sample(self, session, ids, params):
        logits = self.model(torch.tensor([ids])).logits[0, -1].double()
        logits[list(params.bad_ids)] = -torch.inf
        logprob = (logits / params.temperature).log_softmax(-1)
        drawn = random.Random(f"{self.seed}:{session}:{len(ids)}").random()
        token = min(int(torch.searchsorted(logprob.exp().cumsum(0), drawn)), logprob.numel() - 1)
        return token, float(logprob[token])

    def finish(self, ids, sampled, params):
        if sampled[-1] in params.stop_ids:
            return Finish.STOP
        if self.tokenizer and any(text in self.tokenizer.decode(sampled) for text in params.stop_strings):
            return Finish.STOP
        if len(sampled) == params.max_tokens:
            return Finish.MAX_TOKENS
        return Finish.CONTEXT_FULL if len(ids) >= self.context else None

    def publish(self, weights, version):
        self.version = version

    def close(self, session):
        self.sessions.pop(session, None)
        self.closed.append(session)


@torch.no_grad()
def score(model, batch, *, temperature=1.0):
    """Log-prob of every token given those before it in its sequence, and the entropy it was drawn with."""
    logprob_T, entropy_T = torch.zeros(2, batch.tokens, dtype=torch.float64)
    for sequence in range(batch.sequences):
        rows = (batch.sequence_T == sequence).nonzero().flatten()
        ids = batch.ids_T[rows]
        logprobs = (model(ids[None]).logits[0].double() / temperature).log_softmax(-1)
        logprob_T[rows[1:]] = logprobs[:-1].gather(1, ids[1:, None]).flatten()
        entropy_T[rows[1:]] = -(logprobs * logprobs.exp()).sum(-1)[:-1]
    return Scores(logprob_T=logprob_T, entropy_T=entropy_T)
