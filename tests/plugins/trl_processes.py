"""A run of TRL's trainer and one of ours on the same completions, for `torchrun`: prints the largest difference."""

import os
import sys
from pathlib import Path

import torch

from tests.plugins.rows_and_batches import clipped
from tests.plugins.test_trl import CLIP, SAME_STD, trainer

settings = {"num_iterations": 2, "max_steps": 3, "loss_type": "dapo", "optim": "sgd", "learning_rate": 0.02, **CLIP}
settings |= {
    "per_device_train_batch_size": 3,
    "num_generations": 2,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 6 + int(os.environ["RANK"]),
}
tuners = [trainer(Path(sys.argv[1]), row, **settings) for row in (None, clipped().override(SAME_STD))]
for tuner in tuners:
    torch.manual_seed(tuner.accelerator.process_index)
    tuner.train()
pairs = zip(*(tuner.model.parameters() for tuner in tuners), strict=True)
apart = max(float((mine - theirs).detach().abs().max()) for mine, theirs in pairs)
columns = tuners[1].accelerator.gather(torch.tensor([tuners[1]._buffered_inputs[0]["completion_ids"].shape[1]]))
if tuners[0].accelerator.is_main_process:
    print(f"columns {columns.tolist()}; processes {tuners[0].accelerator.num_processes} apart {apart:.2e}")
