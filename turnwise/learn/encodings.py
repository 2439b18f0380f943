"""Numbers in fewer bits: the low half of a single-precision weight, rounding by chance, moments in 8 bits.

Rounding by chance is unbiased: small changes survive on average where rounding to the nearest loses them all. Its
randomness is a function of a key and of the number's place, so every device draws the same and nothing is stored.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

BLOCK = 256
"""Numbers that share a scale in the 8-bit encodings."""
_WORD = 0xFFFFFFFF


def random_key(*of: object) -> int:
    """31 bits from a seed and names."""
    digest = hashlib.blake2b(":".join(map(str, of)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def random_bits(key: int, start: int, like: Tensor) -> Tensor:
    """32 bits for each number of a flat tensor whose first is number `start` (the mixer lowbias32, in int64)."""
    x = torch.arange(start, start + like.numel(), device=like.device).bitwise_and_(_WORD).bitwise_xor_(key)
    x = (x ^ (x >> 16)).mul_(0x7FEB352D).bitwise_and_(_WORD)
    x = (x ^ (x >> 15)).mul_(0x846CA68B).bitwise_and_(_WORD)
    return x ^ (x >> 16)


def split(wide: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as bf16, rounded to the nearest (halves away from zero), and what is missing in 16 bits."""
    bits = wide.view(torch.int32)
    high = torch.where(wide.isnan(), 0x7FC0, (bits + 0x8000) >> 16).to(torch.int16)
    return high.view(torch.bfloat16), (bits - (high.int() << 16)).to(torch.int16)


def join(half: Tensor, residual: Tensor) -> Tensor:
    """The float32 tensor that was split."""
    return ((half.view(torch.int16).int() << 16) + residual).view(torch.float32)


def round_by_chance(wide: Tensor, random_16: Tensor) -> Tensor:
    """To one of the two bf16 neighbours, in proportion to how near they are; `random_16` is in [0, 2**16)."""
    bits = (wide.view(torch.int32) + random_16.int()) & -0x10000
    return torch.where(wide.isfinite(), bits.view(torch.float32), wide).to(torch.bfloat16)


# In 8 bits: each block of 256 numbers is divided by its largest magnitude. What remains is a level, raised to a power
# so that small numbers have fine levels too: (q / 127)² with a sign, and (q / 255)⁴ for squares, which span more. A
# number goes to one of its two neighbouring levels by chance, so that on average it keeps its value. A square that is
# not zero never becomes zero: Adam divides by its root.


def encode_signed(wide: Tensor, random_16: Tensor) -> tuple[Tensor, Tensor]:
    """int8 levels and the scale of each block."""
    share, scale_B = _shares(wide)
    magnitude = share.abs()
    low = (magnitude.sqrt() * 127).floor().clamp_max(126)
    level = _pick(magnitude, low, (low / 127).square(), ((low + 1) / 127).square(), random_16)
    return torch.where(share < 0, -level, level).to(torch.int8), scale_B


def decode_signed(level: Tensor, scale_B: Tensor) -> Tensor:
    """What `encode_signed` kept."""
    wide = level.float() / 127
    return wide * wide.abs() * _spread(scale_B, level)


def encode_square(wide: Tensor, random_16: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 levels and the scale of each block, for numbers that are not negative."""
    share, scale_B = _shares(wide)
    low = (share.sqrt().sqrt() * 255).floor().clamp_max(254)
    level = _pick(share, low, _fourth(low / 255), _fourth((low + 1) / 255), random_16)
    return torch.where(share > 0, level.clamp_min(1), 0).to(torch.uint8), scale_B


def decode_square(level: Tensor, scale_B: Tensor) -> Tensor:
    """What `encode_square` kept."""
    return _fourth(level.float() / 255) * _spread(scale_B, level)


def _shares(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Each number's share of its block's largest magnitude, and those magnitudes."""
    padded = torch.nn.functional.pad(wide, (0, -wide.numel() % BLOCK)).view(-1, BLOCK)
    scale_B = padded.abs().amax(1)
    return wide / _spread(torch.where(scale_B > 0, scale_B, 1), wide), scale_B


def _pick(share: Tensor, low: Tensor, below: Tensor, above: Tensor, random_16: Tensor) -> Tensor:
    """The level below or the one above, by chance."""
    return low + (random_16 < (share - below) / (above - below) * 2**16)


def _fourth(x: Tensor) -> Tensor:
    return x.square().square()


def _spread(scale_B: Tensor, like: Tensor) -> Tensor:
    return scale_B.repeat_interleave(BLOCK)[: like.numel()]
