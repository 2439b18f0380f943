"""What a run tells its screen, and a screen that is recorded."""

import io

from rich.console import Console

from turnwise.console.screen import RunConsole


def row(step, **changes):
    return {
        "step": step,
        "rollout/episodes": 128,
        "rollout/success": 0.4 + step / 100,
        "rollout/reward": 0.5,
        "rollout/turns": 3.25,
        "rollout/faults": 0.0,
        "loss/clip_fraction": 0.012,
        "loss/sampler_kl": 0.0034,
        "loss/entropy": 0.875,
        "time/tokens_per_second": 5123.4,
        "time/step": 2.0,
        **changes,
    }


def evaluation(step, success):
    return {
        "step": step,
        "eval/episodes": 256.0,
        "eval/success": success,
        "eval/success_low": success - 0.05,
        "eval/success_high": success + 0.05,
        "eval/turns": 3.0,
    }


class Clock:
    """A clock that the test turns."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Screen:
    """A console that is recorded: what it wrote is `text`."""

    def __init__(self, form, *, width=200):
        self.file, self.clock = io.StringIO(), Clock()
        out = Console(
            file=self.file, force_terminal=form == "live", width=width, legacy_windows=False, color_system=None
        )
        self.console = RunConsole(form=form, out=out, clock=self.clock)

    @property
    def text(self):
        return self.file.getvalue()

    @property
    def lines(self):
        return self.text.splitlines()
