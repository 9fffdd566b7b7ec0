"""Report what the workers of exercises/zero.py do: what each of them hands in and
receives between a gradient and its update, what its optimizer updates, with which
gradient and how much state, and the weights before each gradient and in the end.
"""

from utils.checking.observers.observe import Observer, _elements

MOST_STEPS = 8  # of which arrays are kept; a check takes fewer


class ZeroObserver(Observer):
    """Reports the updates of a program that applies its gradients itself."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._sources: list = []  # what gradients were taken of
        self._applied = 0

    def _hook_training(self, tf) -> None:
        from tf_keras.src.optimizers import optimizer as optimizers

        self.replace(tf.GradientTape, "gradient", self._gradient)
        self.replace(optimizers._BaseOptimizer, "apply_gradients", self._update)

    def _skip_steps(self, tf) -> None:
        """A loop of its own has no steps of Keras'."""

    def _hook_callbacks(self, tf) -> None:
        """Nor any callbacks."""

    def _perturb_weights(self, next_creator, **kwargs):
        """All begin as the program has it: the optimizer's own copy of a part must not
        differ from the weights."""
        return next_creator(**kwargs)

    def collective(self, kind: str, function):
        call = super().collective(kind, function)

        def counted(*args, **kwargs):
            result = call(*args, **kwargs)
            if self._gradients and not self.building:
                received = result if isinstance(result, list | tuple) else [result]
                self.event(
                    "received",
                    op=kind,
                    elements=max(_elements(tensor) for tensor in received),
                )
            return result

        return counted

    def _gradient(self, original):
        import tensorflow as tf

        def observed(tape, target, sources, *args, **kwargs):
            result = original(tape, target, sources, *args, **kwargs)
            if self._gradients < MOST_STEPS:
                self._sources = tf.nest.flatten(sources)
                self.keep(f"local.{self._gradients}", tf.nest.flatten(result))
                self.keep(f"weights.{self._gradients}", self._sources)
            self._gradients += 1
            self.event("gradient", elements=sum(map(_elements, self._sources)))
            return result

        return observed

    def _update(self, original, position: int = 0):
        def observed(optimizer, grads_and_vars, *args, **kwargs):
            pairs = list(grads_and_vars)
            if "update" in self._inside:
                return original(optimizer, pairs, *args, **kwargs)
            number, self._applied = self._applied, self._applied + 1
            if number < MOST_STEPS:
                self.keep(f"given.{number}", [gradient for gradient, _ in pairs])
                self.keep(f"before.{number}", [variable for _, variable in pairs])
            with self.inside("update"):
                result = original(optimizer, pairs, *args, **kwargs)
            state = optimizer.variables
            state = state() if callable(state) else state
            self.event(
                "update",
                optimizer=type(optimizer).__name__,
                elements=sum(_elements(variable) for _, variable in pairs),
                state=sum(_elements(v) for v in state if len(v.shape)),
            )
            return result

        return observed

    def _report_end(self) -> None:
        if self._sources:
            self.keep("end", self._sources)
