"""Properties of operations, by torch's names. Modules without parameters go by the name of their class."""

from torch import nn

from rl_plasticity.structure.layer import is_plain, role_of

# What operations are called whose operands, not their names, make them what they are.
PLUS_CONSTANT, OF_BRANCHES = "the addition of a constant", "a product of two activations"
BY_COMPUTED = "a computed parameter"
VIEWS = {
    "unsqueeze", "squeeze", "view", "reshape", "expand", "expand_as", "contiguous", "to", "type", "type_as", "float",
    "double", "half", "bfloat16", "clone", "detach", "data", "flatten", "alias", "cuda", "cpu",
}  # fmt: skip
RESHAPES = {"view", "reshape", "flatten"}
FLIPS = {"t", "T", "mT", "adjoint", "transpose", "swapaxes"}  # of a matrix
CUTS = {"getitem", "select", "chunk", "split", "narrow", "unbind"}
PRODUCTS = {"linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "addmv", "einsum", "bilinear"}
CONVOLUTIONS = {f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)}
# A parameter with several axes in one of these is the weight of a layer.
LAYERS = PRODUCTS | CONVOLUTIONS | {"multi_head_attention_forward", "scaled_dot_product_attention", "cdist"}
ADDING = {"addmm", "baddbmm", "addmv"}  # a product to their first operand
NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize"}
SUMS = {"add", "radd", "iadd", "sub", "rsub", "isub"}
SCALINGS = {"mul", "rmul", "imul", "div", "truediv", "itruediv"}
JOINS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "where", "setitem"}
ACTIVATIONS = {
    "relu", "relu6", "gelu", "tanh", "sigmoid", "silu", "elu", "selu", "celu", "leaky_relu", "softplus", "mish",
    "hardswish", "hardtanh", "hardsigmoid", "softsign", "logsigmoid", "threshold", "rrelu",
}  # fmt: skip
# Their lowest and highest values.
BOUNDS = {"tanh": (-1.0, 1.0), "softsign": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "hardsigmoid": (0.0, 1.0)}
# Their output depends only on the shape of their input.
MAKERS = {f"{kind}_like" for kind in ("zeros", "ones", "full", "empty", "rand", "randn", "randint")}
MAKERS |= {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}
NO_TENSOR = {"shape", "size", "dim", "ndim", "numel", "dtype", "device", "len", "is_cuda", "requires_grad"}
DROPOUTS = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "dropout", "Identity"}
POOLS_OF = {  # by how many axes of positions
    n: {f"{kind}{n}d" for kind in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool")}
    | {f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max")}
    for n in (1, 2, 3)
}
POOLS = {pool for pools in POOLS_OF.values() for pool in pools} | DROPOUTS | {"mean", "amax", "max"}
# What may lie between hidden units and the layer that reads them in order.
KEEP_UNITS = POOLS | {"flatten", "Flatten", "view", "reshape", "contiguous", "to", "float", "clone"}
# One of these must bring a feature map's channels to the last axis, where a linear layer reads them.
FLATTENS = {"flatten", "Flatten", "view", "reshape", "mean", "amax", "max"}
SHAPED = {"expand_as", "view_as", "reshape_as", "type_as", "to"}  # the second operand gives a shape or type
# How many operands are places or shapes. Any other operand is a term, and a constant term is an addition.
PLACES = {"getitem": 9, "index_select": 1, "gather": 1, "repeat_interleave": 1, "where": 1, "masked_fill": 1}
PLACES |= {"index_add": 1}
FILLS = {"where", "masked_fill", "setitem"}  # whose numbers are values
# f(a x) = a f(x) for a > 0, where a scales all operands that are no places.
HOMOGENEOUS = VIEWS | FLIPS | CUTS | SUMS | SCALINGS | JOINS | POOLS
HOMOGENEOUS |= {"relu", "leaky_relu", "ReLU", "LeakyReLU", "PReLU", "sum", "neg", "index_add", "masked_fill"}
HOMOGENEOUS |= {"Flatten", "Unflatten", "permute", "movedim", "index_select", "gather", "repeat", "repeat_interleave"}
HOMOGENEOUS |= {"unflatten", "roll", "flip", "pad", "ZeroPad2d", "pixel_shuffle", "PixelShuffle", "unfold"}
HOMOGENEOUS |= {"interpolate", "Upsample"}


def plain(name: str, of_number: bool = False) -> str:
    """``__radd__``, ``add_`` and ``add`` are nearly one: ``radd``, ``add`` and ``add``.

    With a number as the first argument a quotient is one over a value, ``rtruediv``.
    """
    op = name.strip("_")
    return "rtruediv" if of_number and op in ("div", "truediv") else op


def operation_of(module: nn.Module) -> str | None:
    """The operation of a module without parameters, if its class is a known one of torch, or derived from one."""
    if role_of(module) is not None or not is_plain(module):
        return None
    names = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn.modules")]
    return next((name for name in names if name in HOMOGENEOUS), None)
