"""`python -m turnwise.nano --output nano --device cuda --minutes 6`: make the nano model."""

from __future__ import annotations

import argparse
import math

from turnwise.nano.make import STAGES, WORLDS, make_nano
from turnwise.nano.model import Shape
from turnwise.nano.train import Settings


def main() -> None:
    """Read the command line and make the model."""
    parser = argparse.ArgumentParser(prog="python -m turnwise.nano", description="Make the nano model.")
    parser.add_argument("--output", required=True, help="folder for data, tokenizer and model")
    parser.add_argument("--stage", choices=STAGES, action="append", help="only this stage (repeatable; default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="time for training; the schedule shrinks to fit"
    )
    parser.add_argument("--copy-steps", type=int, default=Settings.copy_steps)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--batch-tokens", type=int, default=Settings.batch_tokens)
    parser.add_argument("--learning-rate", type=float, default=Settings.learning_rate)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--worlds", type=int, default=WORLDS, help="made-up worlds to draw data from")
    parser.add_argument("--processes", type=int, default=1, help="processes that make data")
    parser.add_argument("--episodes", type=int, default=512, help="validation episodes per environment")
    given = parser.parse_args()
    settings = Settings(
        copy_steps=given.copy_steps,
        steps=given.steps,
        batch_tokens=given.batch_tokens,
        learning_rate=given.learning_rate,
        minutes=given.minutes,
    )
    make_nano(
        given.output,
        seed=given.seed,
        device=given.device,
        settings=settings,
        shape=Shape(width=given.width, layers=given.layers),
        worlds=given.worlds,
        processes=given.processes,
        episodes=given.episodes,
        stages=tuple(given.stage or STAGES),
    )


if __name__ == "__main__":
    main()
