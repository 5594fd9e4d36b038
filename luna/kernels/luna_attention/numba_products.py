"""Small matrix products in machine code: their matrices lie in cache."""

from __future__ import annotations

from luna.kernels import cpu


@cpu.jit
def add_product(A, B, C, rows):
    """C += A[:rows]^T B[:rows], two rows of C and four of A and B at a time."""
    D, N = C.shape
    for i in range(0, rows - rows % 4, 4):
        for p in range(0, D - D % 2, 2):
            c, d = C[p], C[p + 1]
            a0, a1, a2, a3 = A[i, p], A[i + 1, p], A[i + 2, p], A[i + 3, p]
            e0, e1, e2, e3 = A[i, p + 1], A[i + 1, p + 1], A[i + 2, p + 1], A[i + 3, p + 1]
            for j in range(N):
                b0, b1, b2, b3 = B[i, j], B[i + 1, j], B[i + 2, j], B[i + 3, j]
                c[j] += a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3
                d[j] += e0 * b0 + e1 * b1 + e2 * b2 + e3 * b3
        if D % 2:
            for j in range(N):
                for r in range(i, i + 4):
                    C[D - 1, j] += A[r, D - 1] * B[r, j]
    for i in range(rows - rows % 4, rows):
        for p in range(D):
            for j in range(N):
                C[p, j] += A[i, p] * B[i, j]


@cpu.jit
def product(A, B, C, rows):
    """C[:rows] = A[:rows] B."""
    C[:rows] = 0
    add_product(A[:rows].T, B, C[:rows], len(B))


@cpu.jit
def add_rows(A, scale, c, rows):
    """c += sum of scale[i] A[i] over the first rows."""
    for i in range(rows):
        for d in range(len(c)):
            c[d] += scale[i] * A[i, d]


@cpu.jit
def add_absolute_rows(A, scale, c, rows):
    """The same of |A[i]|."""
    for i in range(rows):
        for d in range(len(c)):
            c[d] += scale[i] * abs(A[i, d])
