"""Keras 2, which Horovod's Keras interface and parameter servers are made for.

TensorFlow comes with Keras 3 unless a variable asks for Keras 2 (the package tf_keras)
before TensorFlow is imported. So a program that needs Keras 2 begins with CHOICE.
"""

import os
import sys

from distcheck.errors import UserError

VARIABLE = "TF_USE_LEGACY_KERAS"
CHOICE = f'os.environ["{VARIABLE}"] = "1"'


def is_chosen() -> bool:
    """Would TensorFlow, imported now, come with Keras 2? It reads the variable so."""
    return os.environ.get(VARIABLE) in ("1", "true", "True")


def choose() -> None:
    """Let TensorFlow come with Keras 2, if it is not imported yet.

    Where it has come with Keras 3 already, a program ends with a sentence on what to
    do; in a notebook, UserError says it.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        os.environ[VARIABLE] = "1"
    elif not tensorflow.keras.Model.__module__.startswith("tf_keras"):
        sentence = (
            "this program got Keras 3, which Horovod does not know. Choose Keras 2 "
            f"before TensorFlow and Horovod are imported: `import os`, then `{CHOICE}`."
        )
        if "ipykernel" in sys.modules:
            raise UserError(f"{sentence} Then restart the kernel.")
        sys.exit(f"UserError: {sentence}")
