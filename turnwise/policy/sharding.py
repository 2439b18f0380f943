"""Sharding by FSDP2: each rank holds a part of every weight; a layer is whole only while it runs.

Everything that reads weights outside of the model's own layers, such as the chunked head, goes through `within`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

Result = TypeVar("Result")
_WITHIN = "_turnwise_within"


def shard(model: PreTrainedModel, device: torch.device) -> None:
    """Leave this rank its part of every weight, in place and on this device. Gradients are summed over ranks."""
    if any(hasattr(layer, "_orig_mod") or layer._compiled_call_impl is not None for layer in _layers(model)):
        raise ValueError("compiled layers cannot be sharded; set model.compile=false or train.ranks=replicas")
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    # Sums are in single precision whatever the weights are. The root reshards too: it must not keep old weights.
    settings: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
        "reshard_after_forward": True,
    }
    for module in (*_layers(model), model):
        sharded: Any = fully_shard(module, **settings)
        sharded.set_gradient_divide_factor(1.0)  # a sum, not a mean
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
    setattr(model, _WITHIN, _call)
    register_fsdp_forward_method(model, _WITHIN)


def within(model: nn.Module, work: Callable[[], Result]) -> Result:
    """Run work that reads weights of the model outside its layers; its result is a tensor, or a tuple or dict of them.

    A sharded model gathers those weights for the work, and again for its backward pass.
    """
    return getattr(model, _WITHIN)(work) if isinstance(model, FSDPModule) else work()


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds only a part of it."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory; all of it where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """All of a tensor; with `like`, of the one whose part this is, sharded the same. Every rank must call it."""
    like = tensor if like is None else like
    if not isinstance(like, DTensor):
        return tensor
    part = local(tensor.detach()).to(like.device).contiguous()
    # As bytes, because gloo does not send all kinds of numbers.
    bytes_, shape = part.unsqueeze(-1).view(torch.uint8), torch.Size([*like.shape, part.element_size()])
    stride = torch.empty(shape, device="meta").stride()
    found = DTensor.from_local(bytes_, like.device_mesh, like.placements, shape=shape, stride=stride).full_tensor()
    return found.view(part.dtype).squeeze(-1)


def rows_of(tensor: Tensor) -> slice:
    """The rows of the whole tensor that this rank holds."""
    if not isinstance(tensor, DTensor):
        return slice(None)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return slice(offset[0], offset[0] + shape[0])


def _call(work: Callable[[], Result]) -> Result:
    return work()


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost layers."""
    for child in model.children():
        if isinstance(child, GradientCheckpointingLayer):
            yield child
        else:
            yield from _layers(child)
