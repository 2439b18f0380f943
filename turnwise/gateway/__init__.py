"""Trains the user's own program through an endpoint: an HTTP server for its calls, and the environment that runs it."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="agent-run",
        entry_point="turnwise.gateway.agent_run:AgentRun",
        summary="Your own program as agent: a function (program=my_agent.py:run) or a command line (command=...).",
        extra="serve",
    ),
)
