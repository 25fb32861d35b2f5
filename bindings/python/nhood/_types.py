"""Types of the public functions whose results depend on an argument, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Protocol, TypeVar, Union, overload

if TYPE_CHECKING:
    from ._functions import FlagPerAxis, PerAxis
    from ._windows import KernelSize

    SizeOfSets = Union[KernelSize, Sequence[PerAxis]]
    OfSets = Union[PerAxis, Sequence[PerAxis]]
    FlagOfSets = Union[FlagPerAxis, Sequence[FlagPerAxis]]

T = TypeVar("T")
"""arrays"""


class ArrayAttention(Protocol[T]):
    """nhood.na1d, na2d, na3d: the log-sum-exp comes with return_lse."""
    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: KernelSize,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        is_causal: FlagPerAxis = False,
        scale: Optional[float] = None,
        *,
        bias: Optional[T] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        return_lse: Literal[False] = False,
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
    ) -> T: ...

    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: KernelSize,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        is_causal: FlagPerAxis = False,
        scale: Optional[float] = None,
        *,
        bias: Optional[T] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        return_lse: Literal[True],
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
    ) -> tuple[T, T]: ...

    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: KernelSize,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        is_causal: FlagPerAxis = False,
        scale: Optional[float] = None,
        *,
        bias: Optional[T] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        return_lse: bool,
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
    ) -> Union[T, tuple[T, T]]: ...

    def __call__(self, *arguments: Any, **named: Any) -> Any: ...


class JaxAttention(Protocol[T]):
    """The same in nhood.jax."""
    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: KernelSize,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        is_causal: FlagPerAxis = False,
        scale: Optional[float] = None,
        *,
        bias: Optional[T] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        return_lse: Literal[False] = False,
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
        deterministic: bool = False,
    ) -> T: ...

    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: KernelSize,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        is_causal: FlagPerAxis = False,
        scale: Optional[float] = None,
        *,
        bias: Optional[T] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        return_lse: Literal[True],
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
        deterministic: bool = False,
    ) -> tuple[T, T]: ...

    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: KernelSize,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        is_causal: FlagPerAxis = False,
        scale: Optional[float] = None,
        *,
        bias: Optional[T] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        return_lse: bool,
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
        deterministic: bool = False,
    ) -> Union[T, tuple[T, T]]: ...

    def __call__(self, *arguments: Any, **named: Any) -> Any: ...


class TorchAttention(Protocol[T]):
    """The same in nhood.torch, where sets of heads may have windows of their own."""
    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: SizeOfSets,
        stride: OfSets = 1,
        dilation: OfSets = 1,
        is_causal: FlagOfSets = False,
        scale: Optional[float] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        *,
        bias: Union[T, Sequence[T], None] = None,
        return_lse: Literal[False] = False,
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
    ) -> T: ...

    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: SizeOfSets,
        stride: OfSets = 1,
        dilation: OfSets = 1,
        is_causal: FlagOfSets = False,
        scale: Optional[float] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        *,
        bias: Union[T, Sequence[T], None] = None,
        return_lse: Literal[True],
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
    ) -> tuple[T, T]: ...

    @overload
    def __call__(
        self,
        query: T,
        key: T,
        value: T,
        kernel_size: SizeOfSets,
        stride: OfSets = 1,
        dilation: OfSets = 1,
        is_causal: FlagOfSets = False,
        scale: Optional[float] = None,
        additional_keys: Optional[T] = None,
        additional_values: Optional[T] = None,
        *,
        bias: Union[T, Sequence[T], None] = None,
        return_lse: bool,
        clamp_window: bool = False,
        is_periodic: FlagPerAxis = False,
        grid: Optional[PerAxis] = None,
        query_offset: Optional[PerAxis] = None,
        key_offset: Optional[PerAxis] = None,
    ) -> Union[T, tuple[T, T]]: ...

    def __call__(self, *arguments: Any, **named: Any) -> Any: ...
