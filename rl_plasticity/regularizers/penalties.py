"""Penalties: regularizers that add a term to the loss."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rl_plasticity.errors import in_short, warn
from rl_plasticity.regularizers.base import Of, Regularizer, Strength
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure.layer import Layer, lookup, per_run, wide


def _sum(value: Tensor, runs: tuple[int, ...]) -> Tensor:
    """`value` ``[*runs, ...]`` summed within each run: ``[*runs]``."""
    return value.reshape(*runs, -1).sum(-1)


class L2(Regularizer):
    """L2 penalty: coef/2 * sum of p^2 over all parameters, or over those that `of` selects.

    Its gradient is coef * p. This is coupled weight decay: it equals the ``weight_decay`` of ``torch.optim.SGD`` and
    ``Adam`` step for step. For the decoupled form, see `weight_decay`.

    Source: Krogh and Hertz (1991), in the form of Oh et al. (2024), Appendix D.2. Lewandowski et al. (2024), section 4,
    have no 1/2: their strength is half of ours.

    Args:
        of: the parameters to penalize:

            - "all";
            - "weights": matrices, kernels and tables, without biases, gains and shifts;
            - "hidden_weights": the weights of linear and convolution layers that are not heads;
            - "heads": weights and biases of the output layers;
            - "biases": without the shifts of norm layers;
            - "norms": gains and shifts of norm layers;
            - "kernels_and_gains": convolution kernels and the gains of norm layers, as weight decay in Liu et al.
              (2021), section VI-A.

    Raises:
        ValueError: the network has no such parameter, or which layers are heads cannot be read.
    """

    has_half = True

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 1e-4, of: Of = "all") -> None:
        super().__init__(net, coef)
        self._act_on(net, self._selected(net, of))

    def term(self, name: str, net: nn.Module) -> Tensor:
        return _sum(wide(lookup(net, name)).square(), self.runs)


class L2Init(Regularizer):
    """Regenerative penalty: coef/2 * sum of (p - p0)^2 over all parameters, with p0 the initial values.

    The initial values are those when the regularizer is made.

    Source: Kumar et al. (2023), regenerative regularization, in the form of Oh et al. (2024), Appendix D.2. Lewandowski
    et al. (2024), section 4, have no 1/2: their strength is half of ours.
    """

    has_half = True
    captures = "initial"

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 1e-4) -> None:
        super().__init__(net, coef)
        self._act_on(net, self._trainable())

    def term(self, name: str, net: nn.Module) -> Tensor:
        return _sum((lookup(net, name) - self._recall("initial", name)).square(), self.runs)


class Wasserstein(Regularizer):
    """Wasserstein penalty: coef * sum over parameter tensors of the mean of (sort(p) - sort(p0))^2.

    The mean is the squared 2-Wasserstein distance between the empirical distributions of a tensor's entries, now and
    when the regularizer is made (p0).

    Source: Lewandowski et al. (2023), "Curvature explains loss of plasticity".
    """

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 1e-4) -> None:
        super().__init__(net, coef)
        self._act_on(net, [name for name in self._trainable() if lookup(net, name).numel()], "trainable parameter")

    def capture(self, name: str, net: nn.Module) -> Mapping[str, Tensor]:
        return {"sorted": wide(lookup(net, name)).reshape(*self.runs, -1).sort(-1).values}

    def weights_of(self, reference: Tensor, now: Tensor) -> Tensor:
        return reference.reshape(now.shape)

    def term(self, name: str, net: nn.Module) -> Tensor:
        return (self.capture(name, net)["sorted"] - self._recall("sorted", name)).square().mean(-1)


class EWC(Regularizer):
    """Elastic weight consolidation: coef/2 * sum of F (p - a)^2, with a running Fisher F and a running anchor a.

    After each backward pass F <- fisher_decay F + (1 - fisher_decay) g^2, where g is the gradient of the loss without
    this penalty, and a <- anchor_decay a + (1 - anchor_decay) p. F starts at 0 and a at the initial weights. No task
    boundary is needed.

    In a loop of your own, call ``observe_(net, gradients)`` between ``backward`` and ``step``. Without that call F
    would stay 0 and the method would do nothing, so `project_` raises. Where several optimizers step one after another,
    call it before each step with the gradients of that optimizer's parameters; F and a of the others stay as they are.

    Source: Kirkpatrick et al. (2017), in the streaming form that Elsayed and Mahmood (2024), "Addressing Loss of
    Plasticity and Catastrophic Forgetting in Continual Learning", compare with. Their paper does not print the factor
    1/2 and the form of g; both are our choice.

    Args:
        coef: the strength. Lewandowski et al. (2024), Appendix B, tried 1e-2, 1e-3 and 1e-4 and found 1e-4 (on SVHN
            1e-3) to work for all their regularizers, so 1e-4 is the default of most penalties here. F is a mean of
            squared gradients and often far below 1. With our form of F such strengths may have little effect, so
            larger ones are worth trying.
        fisher_decay: decay of F per update.
        anchor_decay: decay of a per update.

    Raises:
        RuntimeError: from `project_`, if `observe_` was not called since the last `project_`; from `observe_`, if no
            gradient belongs to a parameter of the network.
    """

    has_half = True
    captures = "anchor"
    missing_call = (
        "has seen no gradients: call regularizer.observe_(net, {name: p.grad for name, p in net.named_parameters()}) "
        "between backward() and optimizer.step()"
    )

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Strength = 1e-4,
        fisher_decay: Annotated[
            float, Setting("decay of the running Fisher information per update", least=0, most=1)
        ] = 0.9999,
        anchor_decay: Annotated[float, Setting("decay of the running anchor per update", least=0, most=1)] = 0.9999,
    ) -> None:
        super().__init__(net, coef)
        self.fisher_decay, self.anchor_decay = fisher_decay, anchor_decay
        self._act_on(net, self._trainable())
        for name in self.names:
            self._remember("fisher", name, torch.zeros_like(wide(lookup(net, name))))

    def term(self, name: str, net: nn.Module) -> Tensor:
        # Clones, because both may change before the backward pass reads them.
        fisher, anchor = self._recall("fisher", name).clone(), self._recall("anchor", name).clone()
        return _sum(fisher * (wide(lookup(net, name)) - anchor).square(), self.runs)

    @torch.no_grad()
    def observe_(self, net: nn.Module, gradients: Mapping[str, Tensor]) -> None:
        if not any(name in gradients for name in self.names):
            raise RuntimeError(
                f"ewc was given no gradient of its network's parameters ({self.names[0]!r}, for example): got "
                f"{in_short(map(repr, gradients)) or 'nothing'}"
            )
        for name in self._now(net):
            if name not in gradients:
                continue
            parameter = wide(lookup(net, name))
            fisher, anchor = self._recall("fisher", name), self._recall("anchor", name)
            of_penalty = (per_run(self.coef, parameter) * fisher).mul_(parameter - anchor)
            less = of_penalty.sub_(wide(gradients[name]))  # the negative gradient of the loss alone
            fisher.lerp_(less.square_(), 1 - self.fisher_decay)
            anchor.lerp_(parameter, 1 - self.anchor_decay)
        self.prepared = True


class Spectral(Regularizer):
    """Spectral penalty: coef * sum over layers of (sigma1(W)^k - 1)^2 + ||b||^(2k), for weight W and bias b.

    sigma1 is the largest singular value. A norm layer adds the sum of (g_i - 1)^2 over its gain, and ||s||^(2k) of its
    shift. A kernel counts as the matrix out x (in * kh * kw), tables count as matrices, and bare vectors and tokens as
    biases. The head is included.

    sigma1 = u^T W v, where the unit vectors u, v are buffers. At each call they follow W by one power-iteration step
    without gradient: v <- W^T u / |W^T u|, u <- W v / |W v|. The gradient of sigma1 is u v^T.

    Source: Lewandowski et al. (2024), arXiv 2406.06811, section 4 (the regularizer R(theta)) and Appendix A.7 (norm and
    convolution layers); k = 2 and one power iteration, as there. The paper does not say how to treat tables and
    attention's in_proj, or how u, v start. Here both kinds count as matrices. u, v start after at least `warmup` steps
    and as many more as bring sigma1 within 1e-3. Bare parameters of unknown role (such as a `log_std`) are left alone,
    with a warning.

    Args:
        coef: lambda of the paper; 1e-4 for actor and critic in its reinforcement learning experiments.
        k: the exponent.
        warmup: the least number of power-iteration steps when the regularizer is made.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Strength = 1e-4,
        k: Annotated[int, Setting("exponent of the singular value", least=1)] = 2,
        warmup: Annotated[int, Setting("minimum number of initial power-iteration steps", least=0, most=100_000)] = 15,
    ) -> None:
        super().__init__(net, coef)
        told = [layer for layer in self.layers if layer.role != "undecided" and layer.parameter_names]
        self._require(told, "trainable layer")
        self._act_on(net, self.layers, least_axes=0)
        self.k = k
        generator = torch.Generator().manual_seed(0)  # leaves the global random state alone
        for layer in self.layers:
            matrix = layer.matrix(net)
            if matrix is None:
                continue
            matrix = wide(matrix).detach()
            out, fan_in = matrix.shape[-2:]
            # All runs start from the same u and v, so that none depends on how many train beside it.
            u = torch.randn(1, out, generator=generator, device="cpu").to(matrix).expand(*self.runs, 1, out)
            v = torch.randn(fan_in, 1, generator=generator, device="cpu").to(matrix).expand(*self.runs, fan_in, 1)
            self._remember("u", layer.key, _unit(u, u))
            self._remember("v", layer.key, _unit(v, v))
            for _ in range(warmup):
                self._sigma1_(layer.key, matrix)
            sigma1 = float(self._converge(layer.key, matrix).max())
            # torch initializes tables with unit variance, so their sigma1 starts far above 1.
            if layer.role == "embedding" and (term := float(self.coef.max()) * (sigma1**k - 1) ** 2) > 1:
                warn(
                    f"spectral starts with a penalty of {term:.3g} for {layer.key} (sigma1 {sigma1:.3g}), which may "
                    f"outweigh the loss: pass roles={{{layer.key!r}: 'ignore'}}, or start with smaller weights"
                )

    def _converge(self, key: str, matrix: Tensor) -> Tensor:
        """Iterate each run until 10 more steps change sigma1 by less than 1e-5 of it: an error far below 1e-3."""
        vectors = [self._recall(kind, key) for kind in ("u", "v")]
        sigma1 = self._sigma1_(key, matrix)
        arrived = torch.zeros_like(sigma1, dtype=torch.bool)
        for _ in range(100):
            kept = [vector.clone() for vector in vectors]
            for _ in range(10):
                after = self._sigma1_(key, matrix)
            for vector, old in zip(vectors, kept, strict=True):  # runs that have converged stay as they are
                vector.copy_(torch.where(arrived, old, vector))
            close = (after - sigma1).abs() <= 1e-5 * after
            sigma1 = torch.where(arrived, sigma1, after)
            arrived |= close
            if bool(arrived.all()):
                break
        return sigma1

    def _sigma1_(self, name: str, matrix: Tensor) -> Tensor:
        """sigma1 ``[*runs, 1, 1]`` of a matrix ``[*runs, out, fan_in]``, after one power-iteration step of u and v."""
        u, v = self._recall("u", name), self._recall("v", name)  # a row and a column
        with torch.no_grad():
            new_v = _unit(_product(u, matrix).mT, v)
            v.copy_(new_v)
        image = _product(matrix, new_v)  # not v, which the next call overwrites: the backward pass may come after it
        with torch.no_grad():
            new_u = _unit(image.mT, u)
            u.copy_(new_u)
        return _product(new_u, image)

    def terms(self, layers: Sequence[Layer], net: nn.Module, inputs: Any) -> Tensor:
        sigmas: list[Tensor] = []
        gains: list[Tensor] = []
        vectors: dict[int, list[Tensor]] = {}  # grouped by length, for one operation each
        for layer in layers:
            matrix, gain = layer.matrix(net), layer.gain(net)
            if matrix is not None:
                sigmas.append(self._sigma1_(layer.key, wide(matrix)))
            if gain is not None:
                gains.append(wide(gain))
            for vector in layer.vectors(net):
                vectors.setdefault(vector.shape[-1], []).append(wide(vector))
        total = self._zeros()
        if sigmas:
            sigma1 = torch.stack(sigmas).squeeze(-1).squeeze(-1)  # [layers, *runs]
            total = total + (sigma1**self.k - 1).square().sum(0)
        if gains:
            total = total + (torch.cat(gains, dim=-1) - 1).square().sum(-1)
        for alike in vectors.values():
            # |b|^(2k) through |b|^2: its gradient at b = 0 is 0, the norm's would be undefined.
            total = total + (torch.stack(alike).square().sum(-1) ** self.k).sum(0)
        return total


class Parseval(Regularizer):
    """Parseval penalty: coef * sum over hidden layers of |W W^T - scale I|_F^2.

    It makes rows orthogonal, with length sqrt(scale). W is the matrix out x fan_in of a linear layer, or
    out x (in * kh * kw) of a convolution, separately for each of its groups. Heads, biases and all else are left alone.
    In terms of singular values sigma, a layer's penalty is the sum of (sigma^2 - scale)^2, plus scale^2 for each row
    beyond the rank. A layer with more outputs than inputs therefore cannot reach 0.

    Source: Chung et al. (2024), "Parseval Regularization for Continual Reinforcement Learning", arXiv 2412.07224, as in
    their code (github.com/wechu/parseval_reg, parseval_reg/agent.py). We could read only the abstract of the paper. In
    their code coef is 1e-3 or 1e-4 times (64 / width)^2, a factor that carries a strength found at width 64 over to
    other widths; scale is the square of the gain of the orthogonal initialization, 2. Convolutions are our addition.

    Args:
        coef: lambda times (64 / width)^2.
        scale: s, the squared length of a row.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Strength = 1e-4,
        scale: Annotated[float, Setting("target for the squared length of each row", above=0)] = 2.0,
    ) -> None:
        super().__init__(net, coef)
        self.scale = scale
        self._act_on(net, self._linear_maps(heads=False, biases=False), "hidden linear or convolution layer")

    def term(self, layer: Layer, net: nn.Module) -> Tensor | None:
        if (matrix := layer.matrix(net)) is None:
            return None
        groups = layer.by_group(wide(matrix))
        out, fan_in = groups.shape[-2:]
        # |W W^T - s I|^2 = |W W^T|^2 - 2 s |W|^2 + s^2 out, and W W^T and W^T W have the same norm.
        gram = _product(groups, groups.mT) if out <= fan_in else _product(groups.mT, groups)
        squares = gram.square().sum((-2, -1)) - 2 * self.scale * groups.square().sum((-2, -1))
        each = squares + self.scale**2 * out  # [*runs], or [*runs, groups]
        return each if layer.groups == 1 else each.sum(-1)


def _unit(vector: Tensor, otherwise: Tensor) -> Tensor:
    """A row or column divided by its length, or `otherwise` where that is 0.

    Otherwise a zero matrix would hold u and v at 0 for good.
    """
    nonzero = torch.add(vector, otherwise, alpha=1e-12)
    length: Tensor = torch.linalg.vector_norm(nonzero, dim=(-2, -1), keepdim=True)
    return nonzero / length


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product a @ b; for the usual single runs axis by bmm, which costs half of matmul's dispatch."""
    if a.is_cuda and torch.compiler.is_compiling() and 1 in (a.shape[-2], b.shape[-1]):
        return _as_sum(a, b)
    return torch.bmm(a, b) if a.ndim == 3 else a @ b


def _as_sum(a: Tensor, b: Tensor) -> Tensor:
    """a @ b where a is a row or b a column: in a graph for a GPU it needs no kernel of its own."""
    return (a * b.mT).sum(-1, keepdim=True) if b.shape[-1] == 1 else (a.mT * b).sum(-2, keepdim=True)
