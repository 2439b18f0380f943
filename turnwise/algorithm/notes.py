"""How well established the rows are: what their papers settle, and what is our reading."""

from __future__ import annotations

from collections.abc import Mapping

_P3O_NOTE = """\
P3O (2310.00212). Established: sequence ratios, each answer the other's baseline, the KL inside the reward, separate or
joint clips. The exact form of the clips, its bound, the coefficient of the KL and the number of minibatches are our
reading [M]."""

MARKS: Mapping[str, str] = {
    "[I]": "inferred from the code base that the paper most plausibly builds on: a starting point",
    "[M]": "from memory, not checked against the source: a starting point",
}
"""How well established a constant is."""

_APO_NOTE = """\
APO (2410.06293): the step is exact for softmax policies that are linear in their parameters; for networks it is an
approximation. alpha is not verified. The momentum starts from the weights before extrapolation, not after it."""

_DARS_NOTE = """\
DARS (2508.13755), from its public code: both schedules and their caps, no division by the spread, no KL, two epochs.
The caps are 32 (ET) and 64 (HW); a budget for all further tries of a step is ours, as is sharing it in proportion."""

_MINIRL_NOTE = """\
MiniRL (2512.01374): weights against the sampler, truncated at 5, masks against the old policy (0.2, 0.27), a group mean
without a spread and a sum over tokens are established. So are the two replays: R2 repeats the experts that the trainer
chose for the old policy, R3 those of the sampler. That R3 covers prompts and observations too is our reading; tokens
whose experts are unknown, such as the last of an episode, are routed freely."""

_RLVER_NOTE = """\
RLVER (2507.03112), from the authors' script: GAE with one dialogue a person, or GRPO with four; no KL anywhere; a
batch of 32 in one minibatch. From the defaults of verl, on which the script builds [I]: gamma and lambda 1, clips of
0.2 and for the critic 0.5, an entropy bonus of 0.001, one epoch, the mean over tokens; PPO's advantages have mean 0 and
spread 1 in a batch, GRPO's are divided by the spread of their group. The paper also names a reward-weighted imitation
term, which the script does not set and which is not here. The rest belongs to the recipe: rates of 1e-6 and for the
critic 5e-6 after a warm-up of 2% and 5% of the steps, temperature 1, 5000 tokens a turn and 10000 in all, eight turns
(the paper's text says ten), env feelings/talk."""

NOTES: Mapping[str, str] = {
    "ppo-max": """\
PPO-max (2307.04964). From the paper: running normalisation and clip of the reward (0.3 and 0.8 were compared), a token
KL of 0.05 in the ablation, gamma 1 and lambda 0.9, a critic that begins as the reward model and learns before the
policy moves, the value clip of 0.2, a language-model loss on other text. The released script differs: scaling without
a mean, no reward clip, a KL of 0.01, lambda 0.95, no weight on other text, no critic pre-training. The length of the
pre-training (16 updates) is ours. Two parts need more than the row: train.critic_from names a reward model, and text
comes with regularizers: [{kind: ptx}] and source.mix: [played, {kind: demonstrations, count: 32}].""",
    "cory": """\
CORY (2410.06101), from the paper: the exact KL of every token in the reward with a coefficient of 0.3 (its script says
0.4, adaptive), clips of 0.2 for policy and critic, the critic's loss weighed by 0.1, gamma 1 and lambda 0.95, four
epochs. Advantages of a batch with mean 0 and spread 1 and one minibatch an epoch are our reading [M]. Two policies
share a reward and swap roles by the recipe: env chat/cory, policies, seats and exchange: {every: 5, policies: […]}.
A swap of the released script forgets the moments of the optimiser: exchange.optimizer=reset.""",
    "endless-terminals": """\
Endless Terminals (2601.16443), from its released settings: gamma and lambda 1, clips of 0.2 and 0.28, the value clip of
0.2, no KL anywhere, the mean over sequences, sixteen tries at each of sixteen tasks, two epochs. Advantages of a batch
with mean 0 and spread 1 and one minibatch an epoch are our reading [M]. The rest belongs to the recipe: a separate
critic (the default), rates of 5e-7 and 1e-6 after a warm-up of 10 to 20 steps, gradients clipped at 1.0 (at 7 billion
weights and above 0.1), a temperature of 0.6 to 0.7, 2048 tokens a turn and 16384 in all, env terminal/tasks.""",
    "rlver-ppo": _RLVER_NOTE,
    "rlver-grpo": _RLVER_NOTE,
    "s-ppo": "Token-level twin of st-ppo; the same things are established and open.",
    "st-ppo": """\
Established for ST-PPO (arXiv 2511.20718): a geometric-mean ratio per turn whose gradient flows through the mean; the
pessimistic clip at 0.2 with token advantages from a token critic; gradients normalised by the L2 norm of the clipping
bias. Our reading, because the method section was not available to us: the norm is that of one optimiser step's batch
and is a constant; nothing clipped means scale 1; the floor (`safe`), the threshold and its calibration. Where the paper
scales the gradient, this row scales the optimiser's step: Adam divides a constant factor of the gradient out again, and
our pilot found that form near-inert or harmful. In the same pilot a lower learning rate did as well at one rate, so the
claim to hold us to is robustness to the learning rate, not the clipping bias as such.""",
    "turn-ppo-drift": """\
Ours, and the default (docs/stability.md): where st-ppo shrinks steps by what the clip hides, this row looks at the KL
from the sampler itself. Found by search, confirmed on ten other seeds of a small task, where it ended higher than
st-ppo over five rates, and on SmolLM2 with three seeds. On-policy it is turn-ppo.""",
    "minirl": _MINIRL_NOTE,
    "minirl-r2": _MINIRL_NOTE,
    "minirl-r3": _MINIRL_NOTE,
    "tdpo1": "TDPO (2404.11999), from its public code: alpha 1 and no stop-gradient.",
    "tdpo2": "TDPO (2404.11999), from its public code: beta 0.1, alpha 0.5, a stop-gradient on the better answer's KL.",
    "sppo": """\
SPPO (2405.00675), from its public code: beta 0.001, best and worst of five samples (here four), the target against all
samples. The target of the pair alone: filters: [errored, {kind: extremes, wins: pair}]. Gradients are of the size
1/beta; a guard that bounds their norm wants a larger beta.""",
    "iterative-dpo": "An iteration is a step: its samples, its pairs, and the policy before its first update.",
    "apo-dpo": _APO_NOTE,
    "apo-sppo": _APO_NOTE,
    "p3o-v1": _P3O_NOTE,
    "p3o-v2": _P3O_NOTE,
    "superhf": """\
SuperHF (2310.16763), from its public code: superbatch 16, beta 0.35. There the KL is summed over the examples of a
minibatch while the imitation loss is a mean, so beta grows with the minibatch; here both are means over tokens.""",
    "grao": """\
GRAO (2508.07750): beta 0.5, lam 0.6. The reference answer is the expert's: set source.expert: 1. The text leaves open
whether the group's mean includes it; here it does, because otherwise the last term would have no part in it.""",
    "dars-et": _DARS_NOTE,
    "dars-hw": _DARS_NOTE,
    "dars-b": f"""{_DARS_NOTE}
Breadth: 3,072 prompts a step at 5e-6 instead of 128 at 1e-6, in one minibatch; set rollout.episodes and the rate.""",
    "rover": """\
ROVER (2509.24981), text and public code: rho = beta = 1, rewards minus the mean of the group on every token, four
minibatches. Its scripts for mathematics divide by the spread as well; the text does not. With one update a step it is
REINFORCE with the group's mean as the baseline. Its theorem is about trees without feedback: with several turns treat
it as a regularised policy gradient.""",
    "kto": "KTO (2402.01306) with a constant anchor in place of the estimated KL.",
    "poad": """\
POAD (2405.15821), from its public code: gamma 0.95 between actions and none inside them, lambda 0.95 everywhere, clips
of 0.2, an entropy bonus of 0.01, and no step for a minibatch whose KL from the sampler is above 0.02. The gradient that
the code drops still enters the moments of our optimiser. The paper's target network for the critic is not in its code
and not here.""",
    "ntpo": "POAD's code with one discount for every token; all else is as in poad.",
    "nlu-ppo": """\
Improving NLU with PPO (2410.11020), from its public code, which is that of TRL: the reward at the last token, a KL in
the reward whose coefficient adapts from 0.2 on, reference = adapters off. Its target of 6 and its gain, a horizon of
10,000 episodes with about 100 a step, are TRL's defaults [M]. Adapters (rank 16, alpha 32) are a setting of the recipe.
Adafactor, rsLoRA and trained biases are not reproduced.""",
    "so-grpo": "Advantage and constants are inferred; only the turn ratio and the scale are published.",
}
"""What is established about a row and what is our reading; `turnwise explain` prints it."""
