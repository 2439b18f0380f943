"""Which experts each token of a mixture-of-experts model goes through: recorded, or chosen in advance.

What travels with a pass as `layout.routing` decides. It reaches a router by two hooks: one on the layer, which also
runs when checkpointing recomputes the layer in another thread, and one on the router. Inside a router `torch.topk`
chooses the experts; a replay answers that call, so that the model's own rule turns the present scores of the recorded
experts into weights, and gradients flow to the router as ever.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.types import ANY_EXPERT

DTYPE = torch.int16
"""Of recorded experts: two bytes for each of a token's choices."""


class Routing(Protocol):
    """What a pass does with the choices of its routers."""

    def choose(self, first: int, chosen_Tk: Tensor) -> Tensor:
        """The experts to use, given what the router would choose; `first` is the router's first column."""
        ...


class ExpertRecorder:
    """Collects the experts of every token, all layers side by side: `[T, columns]`."""

    def __init__(self) -> None:
        self._found: dict[int, Tensor] = {}

    def choose(self, first: int, chosen_Tk: Tensor) -> Tensor:
        """The router's own choice."""
        self._found[first] = chosen_Tk.detach().to(DTYPE)
        return chosen_Tk

    def experts(self) -> Tensor:
        """What was chosen."""
        return torch.cat([self._found[first] for first in sorted(self._found)], dim=1)


class ExpertReplay:
    """Uses recorded experts, and the router's choice where there is none."""

    def __init__(self, experts_TE: Tensor) -> None:
        self._experts_TE = experts_TE

    def choose(self, first: int, chosen_Tk: Tensor) -> Tensor:
        """The recorded experts."""
        recorded_Tk = self._experts_TE[:, first : first + chosen_Tk.shape[1]].to(chosen_Tk)
        return torch.where(recorded_Tk == ANY_EXPERT, chosen_Tk, recorded_Tk)


def follow_routing(model: PreTrainedModel) -> int:
    """Let passes record or replay the experts of this model.

    Returns how many choices a token has in all layers together; 0: there are no routers that we can follow.
    """
    column = 0
    for layer in (each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)):
        routers = _routers(layer)
        is_new = bool(routers) and _enter_layer not in layer._forward_pre_hooks.values()
        if is_new:
            layer.register_forward_pre_hook(_enter_layer, with_kwargs=True)
            layer.register_forward_hook(_leave_layer, always_call=True)
        for router in routers:
            if is_new:
                router.register_forward_pre_hook(partial(_enter_router, first=column))
                router.register_forward_hook(_leave_router, always_call=True)
            column += int(router.top_k)
    return column


class _Here(threading.local):
    """What the pass of this thread is doing."""

    routing: Routing | None = None
    mode: _TopK | None = None


_here = _Here()
_untraced: Any = torch.compiler.disable  # what a thread is doing is not part of a graph


class _TopK(TorchFunctionMode):
    """Answers the call by which a router chooses its experts."""

    def __init__(self, routing: Routing, router: Any, first: int) -> None:
        super().__init__()
        self._routing, self._first = routing, first
        self._shape = (int(router.top_k), int(router.num_experts))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or (found.indices.shape[-1], args[0].shape[-1]) != self._shape:
            return found
        indices = self._routing.choose(self._first, found.indices)
        return found if indices is found.indices else (args[0].gather(-1, indices), indices)


def _routers(module: nn.Module) -> list[Any]:
    """The routers inside a module that choose by `torch.topk`, in order."""
    return [
        each
        for each in module.modules()
        if "Router" in type(each).__name__ and hasattr(each, "top_k") and hasattr(each, "num_experts")
    ]


@_untraced
def _enter_layer(module: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
    _here.routing = getattr(options.get("layout"), "routing", None)


@_untraced
def _leave_layer(module: nn.Module, inputs: Any, output: Any) -> None:
    _here.routing = None


@_untraced
def _enter_router(module: nn.Module, inputs: Any, *, first: int) -> None:
    if _here.routing is not None:
        _here.mode = _TopK(_here.routing, module, first)
        _here.mode.__enter__()


@_untraced
def _leave_router(module: nn.Module, inputs: Any, output: Any) -> None:
    if _here.mode is not None:
        _here.mode.__exit__(None, None, None)
        _here.mode = None
