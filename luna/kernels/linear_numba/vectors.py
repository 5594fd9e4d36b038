"""Vectors of numbers in machine code, as wide as those of the processor that numba compiles for.

numba hands LLVM loops over single numbers, of which it makes half of a vector on processors with
AVX-512, after checks at every row whether memory overlaps. Here a kernel works on whole vectors:

    load(x, at), store(x, at, v)    at a place of an array, which lies in memory without gaps
    same(x, number)                 a vector of one number, of x's type
    load_eight, same_eight          vectors of eight numbers
    a + b, a * b, least(a, b)       number by number; least is b where a is NaN
    where_positive(a, b)            b where a is above 0 or NaN, else 0
    magnitude(a), with_sign(a, b)   |a|, and a times the sign of b
    total(a)                        the sum of the numbers of a vector
    elu_plus_one(a)                 a + 1 above 0, e^a below

LLVM makes something right of them on any processor.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core.registry import cpu_target
from numba.extending import models, overload, register_model

from luna.kernels.luna_attention.numba_outputs import (
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    LOWEST,
    ROUND,
    TAYLOR,
)

intrinsic: Any = extending.intrinsic  # as mypy sees it, a kernel would have to give the context
CONTRACT = ("contract",)  # a product and a sum may be one instruction


def bytes_of(features: str) -> int:
    """The width of the vectors of a processor, whose features LLVM lists as +avx2,-avx512f."""
    have = features.split(",")
    if "+avx512f" in have:
        return 64
    return 32 if "+avx2" in have else 16


WIDTH = bytes_of(cpu_target.target_context.codegen().magic_tuple()[2])


class Vector(types.Type):
    """numba's type of a vector of numbers, as many as the processor's have if nothing is said."""

    def __init__(self, number: types.Float, count: int = 0):
        self.number, self.count = number, count or WIDTH // (number.bitwidth // 8)
        super().__init__(f"Vector({number}, {self.count})")


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector):
        super().__init__(manager, kind, ir_of(kind))


def ir_of(kind: Vector) -> ir.VectorType:
    number = ir.FloatType() if kind.number.bitwidth == 32 else ir.DoubleType()
    return ir.VectorType(number, kind.count)


def start_of(context: Any, builder: Any, array: Any, value: Any) -> Any:
    """A pointer to the first number of an array."""
    return context.make_array(array)(context, builder, value).data


def pointer(builder: Any, start: Any, at: Any, vector: ir.VectorType) -> Any:
    return builder.bitcast(builder.gep(start, [at]), vector.as_pointer())


def splat(builder: Any, number: Any, vector: ir.VectorType) -> Any:
    """A vector of one number."""
    undefined, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(undefined, number, ir.Constant(index, 0))
    places = ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, undefined, places)


@intrinsic
def lanes(_: Any, x: Any) -> Any:
    """Numbers in a vector of the type of an array."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.int64, Vector(x.dtype).count)

    return types.int64(x), codegen


def _loads(count: int = 0) -> Any:
    @intrinsic
    def load(_: Any, x: Any, at: Any) -> Any:
        kind = Vector(x.dtype, count)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = start_of(context, builder, x, arguments[0])
            place = pointer(builder, start, arguments[1], ir_of(kind))
            return builder.load(place, align=x.dtype.bitwidth // 8)

        return kind(x, types.int64), codegen

    return load


load, load_eight = _loads(), _loads(8)


@intrinsic
def store(_: Any, x: Any, at: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = start_of(context, builder, x, arguments[0])
        place = pointer(builder, start, arguments[1], ir_of(value))
        builder.store(arguments[2], place, align=x.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(x, types.int64, value), codegen


def _repeats(count: int = 0) -> Any:
    @intrinsic
    def same(_: Any, x: Any, number: Any) -> Any:
        kind = Vector(x.dtype, count)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return splat(builder, arguments[1], ir_of(kind))

        return kind(x, x.dtype), codegen

    return same


same, same_eight = _repeats(), _repeats(8)


@intrinsic
def added(_: Any, a: Any, b: Any) -> Any:
    return a(a, b), lambda _, builder, __, given: builder.fadd(*given, flags=CONTRACT)


@intrinsic
def multiplied(_: Any, a: Any, b: Any) -> Any:
    return a(a, b), lambda _, builder, __, given: builder.fmul(*given, flags=CONTRACT)


@intrinsic
def least(_: Any, a: Any, b: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)

    return a(a, b), codegen


@intrinsic
def where_positive(_: Any, a: Any, b: Any) -> Any:
    """b where a is above 0 or NaN, else 0."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of, value = arguments
        zero = ir.Constant(of.type, [0.0] * of.type.count)
        return builder.select(builder.fcmp_ordered("<=", of, zero), zero, value)

    return a(a, b), codegen


@intrinsic
def magnitude(_: Any, a: Any) -> Any:
    """|a|"""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return of_vector(builder, "fabs", arguments[0])

    return a(a), codegen


@intrinsic
def with_sign(_: Any, a: Any, b: Any) -> Any:
    """a times the sign of b: 0 where b is 0, NaN where it is NaN."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, of = arguments
        zero = ir.Constant(of.type, [0.0] * of.type.count)
        minus = builder.fsub(ir.Constant(of.type, [-0.0] * of.type.count), x)
        there = builder.select(builder.fcmp_ordered("<", of, zero), minus, x)
        return builder.select(builder.fcmp_ordered("==", of, zero), zero, there)

    return a(a, b), codegen


@intrinsic
def total(_: Any, a: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir_of(a)
        letter = "f32" if a.number.bitwidth == 32 else "f64"
        kind = ir.FunctionType(vector.element, [vector.element, vector])
        name = f"llvm.vector.reduce.fadd.v{vector.count}{letter}"
        function = builder.module.declare_intrinsic(name, fnty=kind)
        zero = ir.Constant(vector.element, -0.0)
        return builder.call(function, [zero, arguments[0]], fastmath=("reassoc",))

    return a.number(a), codegen


@intrinsic
def elu_plus_one(_: Any, a: Any) -> Any:
    """a + 1 above 0 and e^a below; for functions whose sums stay as they are written (`exact`)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (u,) = arguments
        zero, one = (ir.Constant(u.type, [number] * u.type.count) for number in (0.0, 1.0))
        above = builder.fcmp_ordered(">", u, zero)
        below = builder.select(above, zero, u)
        if a.number.bitwidth == 32:
            power = exponential(builder, below)
        else:
            power = of_vector(builder, "exp", below)
        return builder.select(above, builder.fadd(u, one), power)

    return a(a), codegen


def of_vector(builder: Any, name: str, x: Any) -> Any:
    """A function that LLVM knows, of each number. What a processor has not, such as exp in double
    precision, is the C library's, one number at a time."""
    letters = "f32" if x.type.element == ir.FloatType() else "f64"
    kind = ir.FunctionType(x.type, [x.type])
    name = f"llvm.{name}.v{x.type.count}{letters}"
    return builder.call(builder.module.declare_intrinsic(name, fnty=kind), [x])


def exponential(builder: Any, x: Any) -> Any:
    """e^x in single precision, as numba_outputs.exponential has it for one number."""
    vector, whole = x.type, ir.VectorType(ir.IntType(32), x.type.count)

    def all_are(number: Any) -> Any:
        return ir.Constant(vector, [float(number)] * vector.count)

    def add(a: Any, b: Any) -> Any:
        return builder.fadd(a, b, flags=CONTRACT)

    def times(a: Any, b: Any) -> Any:
        return builder.fmul(a, b, flags=CONTRACT)

    low = builder.fcmp_ordered("<", x, all_are(LOWEST))
    x = builder.select(low, all_are(LOWEST), x)
    shifted = add(times(x, all_are(LOG2_E)), all_are(ROUND))
    k = builder.fsub(shifted, all_are(ROUND))
    r = add(add(x, times(k, all_are(-LN2_HIGH))), times(k, all_are(-LN2_LOW)))
    power = all_are(TAYLOR[0])
    for coefficient in TAYLOR[1:]:
        power = add(times(power, r), all_are(coefficient))
    bias, digits = (ir.Constant(whole, [number] * vector.count) for number in (127, 23))
    exponent = builder.add(builder.bitcast(shifted, whole), bias)
    return times(power, builder.bitcast(builder.shl(exponent, digits), vector))


@overload(operator.add)
def _add(a, b):
    if isinstance(a, Vector) and a == b:
        return lambda a, b: added(a, b)
    return None


@overload(operator.mul)
def _multiply(a, b):
    if isinstance(a, Vector) and a == b:
        return lambda a, b: multiplied(a, b)
    return None
