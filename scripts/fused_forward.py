"""A whole MLP forward (linear, LayerNorm, ReLU, twice; linear) of stacked runs in one Triton kernel: a probe.

A program takes BM rows of a run's batch through all layers, since rows meet only in the weights' gradients. The hidden
activations go through memory (they are what a backward pass needs), so a layer's product reads them by blocks.
"""

import triton
import triton.language as tl


@triton.jit
def _normed(a, gain, shift, run, n, H: tl.constexpr):
    mean = tl.sum(a, 1) / H
    a = a - mean[:, None]
    a = a * (1 / tl.sqrt(tl.sum(a * a, 1) / H + 1e-5))[:, None]
    a = a * tl.load(gain + run * H + n)[None, :] + tl.load(shift + run * H + n)[None, :]
    return tl.maximum(a, 0.0)


@triton.jit
def forward_kernel(
    x, w1, b1, g1, s1, w2, b2, g2, s2, w3, b3, h1, h2, y, B, IN, OUT,
    H: tl.constexpr, PIN: tl.constexpr, POUT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    n, k, o = tl.arange(0, H), tl.arange(0, PIN), tl.arange(0, POUT)
    xt = tl.load(x + (run * B + rows[:, None]) * IN + k[None, :], mask=(k < IN)[None, :], other=0.0)
    ut = tl.load(w1 + (run * H + n[None, :]) * IN + k[:, None], mask=(k < IN)[:, None], other=0.0)
    a = tl.dot(xt, ut, input_precision=PREC) + tl.load(b1 + run * H + n)[None, :]
    a = _normed(a, g1, s1, run, n, H)
    tl.store(h1 + (run * B + rows[:, None]) * H + n[None, :], a)
    tl.debug_barrier()
    a = tl.zeros((BM, H), tl.float32)
    for k0 in range(0, H, BK):
        kk = k0 + tl.arange(0, BK)
        at = tl.load(h1 + (run * B + rows[:, None]) * H + kk[None, :])
        wt = tl.load(w2 + (run * H + n[None, :]) * H + kk[:, None])
        a = tl.dot(at, wt, a, input_precision=PREC)
    a = _normed(a + tl.load(b2 + run * H + n)[None, :], g2, s2, run, n, H)
    tl.store(h2 + (run * B + rows[:, None]) * H + n[None, :], a)
    tl.debug_barrier()
    out = tl.zeros((BM, POUT), tl.float32)
    for k0 in range(0, H, BK):
        kk = k0 + tl.arange(0, BK)
        ht = tl.load(h2 + (run * B + rows[:, None]) * H + kk[None, :])
        vt = tl.load(w3 + (run * OUT + o[None, :]) * H + kk[:, None], mask=(o < OUT)[None, :], other=0.0)
        out = tl.dot(ht, vt, out, input_precision=PREC)
    out += tl.load(b3 + run * OUT + o, mask=o < OUT, other=0.0)[None, :]
    tl.store(y + (run * B + rows[:, None]) * OUT + o[None, :], out, mask=(o < OUT)[None, :])


def forward(net, x, h1, h2, y, BM=32, BK=32, PREC="tf32", num_warps=8, num_stages=3):
    """`net`: the package's MLP of two hidden layers; `h1`, `h2`, `y`: what it writes."""
    l1, n1, _, l2, n2, _, l3 = net
    runs, B, IN = x.shape
    H, OUT = l2.in_features, l3.out_features
    forward_kernel[(B // BM, runs)](
        x, l1.weight, l1.bias, n1.weight, n1.bias, l2.weight, l2.bias, n2.weight, n2.bias, l3.weight, l3.bias,
        h1, h2, y, B, IN, OUT, H=H, PIN=max(16, triton.next_power_of_2(IN)), POUT=max(16, triton.next_power_of_2(OUT)),
        BM=BM, BK=BK, PREC=PREC, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return y
