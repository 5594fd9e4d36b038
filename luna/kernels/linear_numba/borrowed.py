"""Arrays that a kernel uses without counting who holds them.

numba counts references at every call of a function and every field of a tuple that is read, by
atomic additions: for a dozen buffers that took as long as a block's products. A kernel knows who
holds its arrays: whoever calls it.

    k, maps = borrowed((k, maps))            arguments
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils

from luna.kernels.linear_numba.vectors import intrinsic


@intrinsic
def borrowed(_: Any, x: Any) -> Any:
    """An array, or a tuple of arrays and other things, whose memory nobody counts."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _uncounted(context, builder, x, arguments[0])

    return x(x), codegen


def _uncounted(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    is_tuple = isinstance(kind, types.BaseTuple)
    if is_tuple:
        for i, inner in enumerate(kind):
            item = _uncounted(context, builder, inner, builder.extract_value(value, i))
            value = builder.insert_value(value, item, i)
    elif isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        value = array._getvalue()
    return value
