"""VGG-16, one run at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from torch import nn

from rl_plasticity import Setting, SettingsError
from rl_plasticity.networks import Activation, make_activation
from rl_plasticity_zoo.one_run import fit_gain_, one_run, side_of

# Output channels of the 13 convolutions, in the five blocks that each end in max-pooling (configuration D).
BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def _vgg16(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    batch_norm: bool,
    hidden_layers: Annotated[
        int, Setting("fully connected layers of 4096 units before the head (0 in the WRS paper)", least=0, most=2)
    ] = 2,
    activation: Activation = "relu",
) -> nn.Sequential:
    """VGG-16 without dropout: ``[batch, c, s, s] -> [batch, classes]``.

    Source: Simonyan and Zisserman (2015), configuration D. Initial weights are normal with variance 2 / fan_in
    (He et al. 2015; for other activations than ReLU the square of their gain instead of 2), biases zero. The classifier
    sees the last feature map as it is (7 x 7 for 224 pixels, 1 x 1 for 32): it is not pooled or enlarged to 7 x 7.

    Args:
        batch_norm: BatchNorm after each convolution, as Liu et al. (2021), footnote 1. Oh et al. (2024) do not say
            whether theirs has it (D.1). Most probably it has: they search two strengths only for networks with
            BatchNorm (D.2), and Tables 2 to 4 give VGG-16 two.
        hidden_layers: how many fully connected layers of 4096 units come before the head. Two as Oh et al. (2024),
            Appendix D.1; none for the network of Liu et al. (2021), whose Algorithm 1 takes it that only the last layer
            is fully connected.
        activation: behind every layer but the head; "crelu" and "deep_fourier" double the inputs of the next.

    Raises:
        SettingsError: images below 32 pixels, of which five poolings leave nothing.
    """
    side = side_of(shape)
    if side < 32:
        raise SettingsError(f"images must have at least 32 pixels per side for VGG-16, got {side}")
    features: list[nn.Module] = []
    fan_in = shape[0]
    with one_run("vgg16", seeds):
        for block in BLOCKS:
            for out in block:
                features.append(nn.Conv2d(fan_in, out, 3, padding=1))
                if batch_norm:
                    features.append(nn.BatchNorm2d(out))
                non_linearity, factor = make_activation(activation, dim=1)
                features.append(non_linearity)
                fan_in = factor * out
            features.append(nn.MaxPool2d(2))
        classifier: list[nn.Module] = []
        fan_in *= (side // 32) ** 2
        for _ in range(hidden_layers):
            non_linearity, factor = make_activation(activation)
            classifier += [nn.Linear(fan_in, 4096), non_linearity]
            fan_in = factor * 4096
        net = nn.Sequential(*features, nn.Flatten(), *classifier, nn.Linear(fan_in, num_classes))
        for module in net:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                fit_gain_(module.weight, activation)
                assert module.bias is not None
                nn.init.zeros_(module.bias)
    return net


vgg16, vgg16_bn = (partial(_vgg16, batch_norm=batch_norm) for batch_norm in (False, True))
