"""VGG-16, one run at a time."""

from torch import nn

from rl_plasticity.errors import SettingsError

# Output channels of the 13 convolutions, in the five blocks that each end in max-pooling (configuration D).
BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(num_classes: int, image_size: int, batch_norm: bool = False, channels: int = 3) -> nn.Sequential:
    """VGG-16 with a classifier of two 4096-wide layers without dropout: ``[batch, c, s, s] -> [batch, classes]``.

    Source: Simonyan and Zisserman (2015), configuration D; the classifier as Oh et al. (2024), Appendix D.1; BatchNorm
    after each convolution as Liu et al. (2021), footnote 1. Initial weights are normal with variance 2 / fan_in
    (He et al. 2015), biases zero. The classifier sees the last feature map as it is (7 x 7 for 224 pixels, 1 x 1 for
    32): it is not pooled or enlarged to 7 x 7.

    Raises:
        SettingsError: an image_size below 32, of which five poolings leave nothing.
    """
    if image_size < 32:
        raise SettingsError(f"image_size must be at least 32 for VGG-16, got {image_size}")
    features: list[nn.Module] = []
    fan_in = channels
    for block in BLOCKS:
        for out in block:
            features.append(nn.Conv2d(fan_in, out, 3, padding=1))
            if batch_norm:
                features.append(nn.BatchNorm2d(out))
            features.append(nn.ReLU())
            fan_in = out
        features.append(nn.MaxPool2d(2))
    classifier = (
        nn.Linear(512 * (image_size // 32) ** 2, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, num_classes),
    )
    net = nn.Sequential(*features, nn.Flatten(), *classifier)
    for module in net:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
    return net
