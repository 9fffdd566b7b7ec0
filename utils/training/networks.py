"""The networks of the programs that are about something else.

`wide_resnet` is that of exercises/fashion_mnist.py, where it is explained.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from distcheck import keras_2

if TYPE_CHECKING:
    import tensorflow as tf

_instead: Callable[[], "tf.keras.Model"] | None = None


def use_instead(build: Callable[[], "tf.keras.Model"] | None) -> None:
    """Let `wide_resnet` be what `build` makes, in this process: for who looks at what a
    program does, whatever network it trains. None: itself again."""
    global _instead
    _instead = build


def wide_resnet(
    width: int = 1,
    weight_decay: float = 5e-6,
    dropout: float = 0.01,
    input_shape: tuple[int, int, int] = (28, 28, 1),
) -> "tf.keras.Model":
    """WRN-16-`width` (Zagoruyko and Komodakis, 2016, arXiv:1605.07146): images float32
    (batch, *input_shape) to probabilities (batch, 10)."""
    if _instead:
        return _instead()
    keras_2.choose()
    import tensorflow as tf

    layers = tf.keras.layers

    def conv(x, filters, size):
        return layers.Conv2D(
            filters,
            size,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=tf.keras.regularizers.L2(weight_decay),
        )(x)

    def cbr(x, filters):
        x = conv(x, filters, 3)
        return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))

    def conv_block(x, filters):
        shortcut = x if x.shape[-1] == filters else conv(x, filters, 1)
        x = cbr(layers.Dropout(dropout)(cbr(x, filters)), filters)
        return layers.Add()([x, shortcut])

    image = tf.keras.Input(input_shape)
    x = cbr(image, 16)
    for group, filters in enumerate([16 * width, 32 * width, 64 * width]):
        if group > 0:
            x = layers.MaxPooling2D(2)(x)
        x = conv_block(conv_block(x, filters), filters)
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, layers.Dense(10, activation="softmax")(x))


def small_cnn(
    input_shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10
) -> "tf.keras.Model":
    """Two convolutions and two dense layers, without dropout and batch normalization:
    images float32 (batch, *input_shape) to probabilities (batch, classes)."""
    keras_2.choose()
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input(input_shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(classes, activation="softmax"),
        ]
    )


def tiny() -> "tf.keras.Model":
    """One dense layer of eight, with batch normalization: images float32 (batch, 28,
    28, 1) to probabilities (batch, 10)."""
    keras_2.choose()
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(8),
            layers.BatchNormalization(momentum=0.9),
            layers.Dense(10, activation="softmax"),
        ]
    )
