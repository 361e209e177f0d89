"""The benefit of a regularizer, on a small language model: ``python examples/changing_text.py [seeds=3] [tasks=10]``.

A small GPT-2 memorizes 128 sequences of random tokens, then 128 others, and so on, with 300 Adam steps each and a
learning rate that suits the first. The curves differ only in the one line with ``attach``. The script prints the loss
at the end of each task and draws ``changing_text.png``. It takes about half a minute for each method and seed on one
CPU thread.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rl_plasticity import attach

METHODS = {
    "none": {},
    "l2_init": {"coef": 1e-3},
    "spectral": {"coef": 1e-3},
}
STEPS, SEQUENCES, LENGTH, VOCABULARY, BATCH, LR = 300, 128, 16, 32, 32, 3e-3


def model() -> GPT2LMHeadModel:
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **tokens, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def losses(method: str, seed: int, tasks: int, steps: int = STEPS) -> list[float]:
    """The mean loss on each task's sequences after its last step, in nats per token; chance is ln 32 = 3.47."""
    torch.manual_seed(seed)
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    if method != "none":
        example = {"input_ids": torch.zeros(1, LENGTH, dtype=torch.long)}
        attach(method, optimizer, net, example=example, **METHODS[method])
    draws = torch.Generator().manual_seed(seed)
    ends = []
    for _ in range(tasks):
        text = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), generator=draws)
        for _ in range(steps):
            batch = text[torch.randint(SEQUENCES, (BATCH,), generator=draws)]
            optimizer.zero_grad()
            net(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
        with torch.no_grad():
            ends.append(net(input_ids=text, labels=text).loss.item())
    return ends


def main(seeds: int = 3, tasks: int = 10, steps: int = STEPS) -> dict[str, np.ndarray]:
    torch.set_num_threads(1)
    results = {}
    for method in METHODS:
        results[method] = np.array([losses(method, seed, tasks, steps) for seed in range(seeds)])  # [seeds, tasks]
        means = " ".join(f"{x:.2f}" for x in results[method].mean(0))
        print(f"{method:10} {means}", flush=True)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for method, ends in results.items():
        name, colour = ("no method", "black") if method == "none" else (method, None)
        (line,) = axes.plot(range(1, tasks + 1), ends.mean(0), marker="o", label=name, color=colour)
        axes.fill_between(range(1, tasks + 1), ends.min(0), ends.max(0), alpha=0.2, color=line.get_color())
    axes.set(
        xlabel="task", ylabel=f"loss after {steps} steps (nats per token)", ylim=0, title="GPT-2, 2 x 32, random text"
    )
    axes.legend(title=f"mean and range of {seeds} seeds")
    figure.savefig("changing_text.png", dpi=120)
    return results


if __name__ == "__main__":
    main(**{name: int(value) for name, value in (argument.split("=") for argument in sys.argv[1:])})
