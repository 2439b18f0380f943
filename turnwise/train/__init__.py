"""The trainer: play, pack, score, credit, step, publish, guard, record; and what makes a run safe to leave."""
