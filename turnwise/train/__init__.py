"""The trainer: play, pack, score, credit, step, publish, guard, record; and everything that makes a run safe to leave."""
