"""What Keras' callbacks may do with the metrics that they read."""

KNOWN_TO_DECIDE = {"EarlyStopping", "ReduceLROnPlateau"}
DECIDING = {"stop_training", "learning_rate", "lr"}
# Keras' own callbacks that print or write what they read, and change nothing.
ONLY_TELLING = {"History", "ProgbarLogger", "CSVLogger", "TensorBoard"}
ONLY_TELLING |= {"ModelCheckpoint", "RemoteMonitor"}


def decides(callback) -> bool:
    """May it change how training goes on, by what it reads? By its code's names."""
    kinds = [kind for kind in type(callback).__mro__ if kind.__name__ != "Callback"]
    if {kind.__name__ for kind in kinds} & KNOWN_TO_DECIDE:
        return True
    own = [
        kind
        for kind in kinds
        if not kind.__module__.startswith(("tf_keras", "keras", "horovod"))
    ]
    # Of a LambdaCallback, the functions that it was given.
    found = [f for owner in (callback, *own) for f in vars(owner).values()]
    functions = [f for f in found if hasattr(f, "__code__")]
    ends = [f for f in functions if "stop_training" in f.__code__.co_names]
    names = {name for f in functions for name in f.__code__.co_names}
    return bool(ends) or bool(names & {"assign", "set_value"} and names & DECIDING)
