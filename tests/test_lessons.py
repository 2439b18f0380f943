"""The lessons in examples/lessons run from the first cell to the last, in a short form, and teach in words."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LESSONS = sorted((ROOT / "examples" / "lessons").glob("lesson_*.py"))
SHOWN = {
    "lesson_1_first_run": r"finished after 4 steps",
    "lesson_2_your_environment": r"step +2: success \d\.\d\d in \d\.\d\d turns",
    "lesson_3_your_agent": r"turns that began a sequence of their own: 0",
    "lesson_4_the_microscope": r"(?s)\nturn-ppo-drift\nsampler_kl.*\n  turn 0 .*held-out success",
    "lesson_5_a_paper": r"6 of 6 runs are complete(?s:.*)\npoad   eval/score_short",
}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_lesson_runs_from_the_first_cell_to_the_last(
    lesson: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if lesson.stem == "lesson_3_your_agent":
        pytest.importorskip("openai", reason="the agent of this lesson uses the openai client")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LESSON_SHORT", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    runpy.run_path(str(lesson), run_name="__main__")
    assert re.search(SHOWN[lesson.stem], capfd.readouterr().out)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_lesson_is_cells_of_text_and_code_and_ends_with_an_exercise(lesson: Path) -> None:
    cells = re.split(r"^# %%", lesson.read_text(), flags=re.MULTILINE)[1:]
    texts = [cell for cell in cells if cell.startswith(" [markdown]")]
    assert texts[0].startswith(" [markdown]\n# # Lesson ")
    assert len(texts) >= 5
    assert len(cells) - len(texts) >= 5
    assert "\n# ## Exercise\n" in cells[-1]
    for text in texts:  # a line that is not a comment would be lost when the cell is shown as text
        assert all(line.startswith("#") for line in text.splitlines()[1:] if line)


def test_there_are_five() -> None:
    assert [lesson.stem for lesson in LESSONS] == list(SHOWN)
