"""How much a device computes in products of large matrices, where nothing holds it up.

    python utils/measure/programs/products.py --precision mixed_float16

Prints the TFLOP/s of each round, in JSON: what a network could reach at most.
"""

import argparse
import json
import time

import tensorflow as tf


def products(precision: str, size: int, rounds: int, repeats: int) -> list[float]:
    """TFLOP/s of each round of so many products of two matrices of `size` rows."""
    policy = tf.keras.mixed_precision.Policy(precision)
    dtype = policy.compute_dtype
    left, right = (tf.cast(tf.random.normal((size, size)), dtype) for _ in range(2))

    @tf.function
    def multiply(matrix):
        for _ in range(repeats):
            # Each needs the one before; small numbers stay small.
            matrix = tf.matmul(matrix, right) / size
        return tf.reduce_sum(matrix)

    multiply(left).numpy()
    measured = []
    for _ in range(rounds):
        started = time.perf_counter()
        multiply(left).numpy()
        seconds = time.perf_counter() - started
        measured.append(2 * size**3 * repeats / seconds / 1e12)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="float32", help="Keras' policy")
    parser.add_argument("--size", type=int, default=8_192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    print(json.dumps(products(args.precision, args.size, args.rounds, args.repeats)))


if __name__ == "__main__":
    main()
