"""Types of part parameters; recipe values are checked against them."""

from typing import Annotated, Literal

from pydantic import Field

Discount = Annotated[float, Field(ge=0, le=1)]
"""A discount or trace decay, between 0 and 1."""
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[float, Field(ge=1)]
Count = Annotated[int, Field(ge=1, strict=True)]
GroupSize = Annotated[int, Field(ge=2, strict=True)]
LowerClip = Annotated[float, Field(gt=0, le=1)]
"""How far a ratio may fall below 1."""
Pooled = Literal["token", "turn", "sequence"]
"""The unit over which log-ratios are pooled."""
