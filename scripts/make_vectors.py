"""Makes docs/vectors from the reference code of the methods: ``python scripts/make_vectors.py``.

Ten updates of a small network in float64, with gradients that are given, by plain torch alone. docs/vectors.md says
what the files hold. The package is not imported: a test compares it with them.
"""

import copy
import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "vectors"
UPDATES, SAVED, EXAMPLES = 10, (1, 10), 16
ADAM = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1.0}  # such an eps lets the size of a gradient show in the first step
# Each method with the settings that its reference code gets. The updates that it acts on are among the first ten.
REGULARIZERS: dict[str, dict[str, float]] = {
    "l2": {"coef": 0.3},
    "l2_init": {"coef": 0.3},
    "wasserstein": {"coef": 0.3},
    "spectral": {"coef": 0.3, "k": 2},
    "parseval": {"coef": 0.3, "scale": 2.0},
    "feature_rank": {"coef": 0.03},
    "churn": {"coef": 0.3},
    "ewc": {"coef": 0.3, "fisher_decay": 0.9, "anchor_decay": 0.8},
    "swr": {"coef": 0.3},
    "wrs": {"every_updates": 2, "norm_decay": 1.0},
    "normalize_project": {},
    "hypersphere": {},
    "orthogonal": {"coef": 0.1, "scale": 1.0},
    "weight_clipping": {"coef": 0.5},
    "weight_decay": {"coef": 1.0},
    "hare_tortoise": {"every_updates": 5, "momentum": 0.8},
    "continual_backprop": {"coef": 0.5, "maturity": 9, "decay": 0.9},
    "self_normalized_resets": {"threshold": 160},
}
INTERVENTIONS: dict[str, dict[str, float]] = {
    "dash": {"least": 0.1},
    "fire": {},
    "head": {},
    "optimizer": {},
    "periodic": {},
    "plasticity_injection": {},
    "redo": {"threshold": 0.025},
    "regrama": {"threshold": 0.9},
    "selective_reinit": {"factor": 0.5},
    "shrink_perturb": {"coef": 0.2},
}
OF_UNITS = ("continual_backprop", "self_normalized_resets", "redo", "regrama")  # whose reference code has no norm layer


def network(kind: str) -> nn.Sequential:
    norm = [nn.LayerNorm(8)] if kind == "normed" else []
    return nn.Sequential(nn.Linear(5, 8), *norm, nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def given_network(kind: str, when: str, given: Mapping[str, Tensor]) -> nn.Sequential:
    """With the weights that it has ``initial``ly, ``before`` the updates or ``fresh`` from an intervention."""
    net = network(kind)
    net.load_state_dict(under(given, f"{kind}/{when}"))
    return net


def under(tensors: Mapping[str, Tensor], folder: str) -> dict[str, Tensor]:
    """What is in a folder of the names, named from there on."""
    return {name.removeprefix(f"{folder}/"): t for name, t in tensors.items() if name.startswith(f"{folder}/")}


def make_given(rng: np.random.Generator) -> dict[str, Tensor]:
    """Weights, gradients and inputs, drawn from normal distributions."""
    given = {"inputs": rng.standard_normal((UPDATES, EXAMPLES, 5))}
    for kind in ("normed", "plain"):
        shapes = {name: tensor.shape for name, tensor in network(kind).state_dict().items()}
        for when in ("initial", "before", "fresh"):
            for name, shape in shapes.items():
                gain = kind == "normed" and name == "1.weight"
                given[f"{kind}/{when}/{name}"] = gain + 0.4 * rng.standard_normal(shape)
        for name, shape in shapes.items():
            given[f"{kind}/gradients/{name}"] = rng.standard_normal((UPDATES, *shape))
    given["plain/before/0.bias"][4] = -50.0  # a unit that is silent whatever comes
    given["plain/before/2.bias"][2] = -50.0
    return {name: torch.from_numpy(value) for name, value in given.items()}


def reference(method: str) -> dict[str, Callable[..., Any]]:
    """The functions of a method's reference code, by name."""
    space: dict[str, Any] = {"torch": torch, "nn": nn}
    page = DOCS / ("regularizers.md" if method in REGULARIZERS else "interventions.md")
    code = re.search(rf"^## {method}\n(?:(?!^## ).)*?^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert code, f"{method} has no code in {page.name}"
    exec(code[1], space)
    return {name: value for name, value in space.items() if inspect.isfunction(value)}


def call(function: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    """With what the arguments' names stand for."""
    return function(**{name: known[name] for name in inspect.signature(function).parameters if name in known})


def linear(net: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in net if isinstance(layer, nn.Linear)]


def activations(net: nn.Sequential, x: Tensor) -> list[Tensor]:
    """Of the hidden units, layer by layer: [examples, units] each."""
    return [net[: i + 1](x).detach() for i, layer in enumerate(net) if isinstance(layer, nn.ReLU)]


def expected(method: str, settings: Mapping[str, float], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `method` makes of the given network, as docs/vectors.md describes it."""
    kind = "plain" if method in OF_UNITS else "normed"
    initial, net, fresh = (given_network(kind, when, given) for when in ("initial", "before", "fresh"))
    optimizer, functions = torch.optim.Adam(net.parameters(), **ADAM), reference(method)
    all_gradients = under(given, f"{kind}/gradients")
    heads = None  # of an injection
    # What the arguments of reference code stand for.
    known: dict[str, Any] = {"net": net, "fresh": fresh, "make": lambda: fresh, "optimizer": optimizer} | dict(settings)
    known |= {"lr": ADAM["lr"]}
    known |= {"initial": fresh if method == "shrink_perturb" else initial, "hidden": linear(net)[:-1]}
    known |= {"before": initial, "slow": copy.deepcopy(initial), "anchor": [*copy.deepcopy(initial).parameters()]}
    known |= {"fisher": [torch.zeros_like(p) for p in net.parameters()]}
    made = {}
    for update, x in enumerate(given["inputs"], start=1):
        gradients = [all_gradients[name][update - 1] for name, _ in net.named_parameters()]
        known |= {"x": x, "update": update, "features": net[:-1](x), "gradients": gradients, "h": activations(net, x)}
        for p, gradient in zip(net.parameters(), gradients, strict=True):
            p.grad = gradient.clone()
        if "penalty" in functions:
            penalty = torch.as_tensor(call(functions["penalty"], known))
            penalty.backward()
        with torch.no_grad():
            if "observe_" in functions:
                call(functions["observe_"], known)
            known["before"] = copy.deepcopy(net)
            optimizer.step()
            if "project_" in functions:
                call(functions["project_"], known)
            if "renew_" in functions:
                renew_(functions["renew_"], net, known)
            if update == 1 and "apply_" in functions:
                call(functions["apply_"], known)
            if update == 1 and "recycle_" in functions:
                recycle_(functions["recycle_"], net, known)
            if update == 1 and "forward" in functions:
                heads = inject_(net, known)
        if update in SAVED:
            saved = {name: p.detach().clone() for name, p in net.named_parameters()}
            if "penalty" in functions:
                saved["penalty"] = penalty.detach()
            if heads:
                saved["outputs"] = functions["forward"](net[:-1](x), heads[0], net[-1], heads[1]).detach()
            made |= {f"{method}/{update}/{name}": t for name, t in saved.items()}
    return made


def renew_(renew: Callable[..., None], net: nn.Sequential, known: dict[str, Any]) -> None:
    """One update of units that are renewed. Their new incoming weights are drawn, and become NaN here."""
    layers = linear(net)
    outgoing = [layer.weight.clone() for layer in layers[1:]]
    for i, (h, w_out) in enumerate(zip(known["h"], outgoing, strict=True)):
        zeros = {name: torch.zeros(h.shape[1]).double() for name in ("use", "age")} | {"due": torch.zeros(1).double()}
        state, w_in = known.setdefault(f"state {i}", zeros), layers[i].weight.clone()
        call(renew, known | state | {"w_in": w_in, "b_in": layers[i].bias, "w_out": w_out, "h": h})
        renewed = (w_in != layers[i].weight).any(1)
        layers[i].weight[renewed] = torch.nan
        layers[i + 1].weight[:, renewed] = 0


def recycle_(recycle: Callable[..., None], net: nn.Sequential, known: dict[str, Any]) -> None:
    """An intervention that recycles units, and the restart of the moments of each weight that changes."""
    layers, fresh = linear(net), linear(known["fresh"])
    h, before = activations(net, known["x"]), [p.clone() for p in net.parameters()]
    for i in (1, 0):  # the weight between two recycled units becomes zero
        parts = {"incoming": layers[i], "outgoing": layers[i + 1], "fresh": fresh[i], "h": h[i]}
        call(recycle, known | parts)
    for p, old in zip(net.parameters(), before, strict=True):
        for moment in ("exp_avg", "exp_avg_sq"):
            known["optimizer"].state[p][moment][p != old] = 0


def inject_(net: nn.Sequential, known: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    """Puts a new head in the head's place, as `head` does; returns the old one and a copy of the new."""
    old = copy.deepcopy(net[-1])
    call(reference("head")["apply_"], known)
    return old, copy.deepcopy(net[-1])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    given = make_given(np.random.default_rng(0))
    methods = REGULARIZERS | INTERVENTIONS
    every = [expected(method, settings, given) for method, settings in methods.items()]
    save_file(given, FOLDER / "given.safetensors")
    save_file({name: t.contiguous() for made in every for name, t in made.items()}, FOLDER / "expected.safetensors")
    index = {
        method: {
            "kind": "regularizer" if method in REGULARIZERS else "intervention",
            "network": "plain" if method in OF_UNITS else "normed",
            "settings": settings,
        }
        for method, settings in methods.items()
    }
    (FOLDER / "vectors.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
