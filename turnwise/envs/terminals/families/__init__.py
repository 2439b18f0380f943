"""Families of terminal tasks: each is a few jobs, and a complexity says how many of them make a task.

| complexity | what a task asks for |
|---|---|
| 1 | one command |
| 2 | two or three |
| 3 | three or four |
| 4 | several steps, each of which needs the one before |
| 5 | several parts that do not depend on each other |
| 6 | five to ten commands |
"""
