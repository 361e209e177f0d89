"""A regularizer in a plain torch loop, with mixed precision, accumulation and clipping: ``python plain_torch.py``.

The only addition is the line with `attach`. The penalty's gradient is added when the optimizer steps, once and
unclipped. For a comparison without it, pass ``coef=0``.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity import attach

MICRO_BATCHES, BATCH_SIZE = 4, 32


def draw_batch(teacher: nn.Module) -> tuple[Tensor, Tensor]:
    """Random inputs ``[batch, 16]``, and the classes ``[batch]`` that the teacher assigns to them."""
    x = torch.randn(BATCH_SIZE, 16, device=next(teacher.parameters()).device)
    with torch.no_grad():
        return x, teacher(x).argmax(-1)


def main(steps: int = 500, coef: float = 1e-3) -> float:
    """Train for some steps; returns the last loss."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float16 if device == "cuda" else torch.bfloat16  # bfloat16 has float32's range and needs no scaling
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    teacher = nn.Linear(16, 4).to(device)

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    handle = attach("spectral", optimizer, net, coef=coef)

    total = torch.zeros((), device=device)
    for step in range(1, steps + 1):
        total = torch.zeros((), device=device)
        for _ in range(MICRO_BATCHES):
            x, labels = draw_batch(teacher)
            with torch.autocast(device, dtype):
                loss = F.cross_entropy(net(x), labels) / MICRO_BATCHES
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        if handle.penalty is not None and step % max(1, steps // 5) == 0:
            print(f"step {step:4d}  loss {total:.3f}  penalty {handle.penalty:.5f}")
    # To resume exactly, save handle.state_dict() with the states of network and optimizer.
    return total.item()


if __name__ == "__main__":
    main()
