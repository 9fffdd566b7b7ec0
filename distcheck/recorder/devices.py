"""Record which GPUs a program makes visible, of those that are pretended."""

import os
from collections.abc import Mapping
from typing import Any

from distcheck.recorder import interventions, patches
from distcheck.recorder.recorder import Recorder


class DeviceRecorder(Recorder):
    """Records the GPUs that TensorFlow takes hold of. In a scenario with
    `devices_only`, the program ends there."""

    _pretended: Mapping[Any, int]

    def hook_devices(self) -> None:
        """Record from now on."""
        context = patches.eager_context().Context
        self.before(context, "set_visible_devices", self._pins)
        self.replace(*patches.listing_of_devices(), self._list)
        self.before(context, "ensure_initialized", self._takes_hold)
        self.replace(context, "get_device_details", self._details)

    def _list(self, original):
        def observed(context, *args, **kwargs):
            if patches.has_listed_devices(context):
                return original(context, *args, **kwargs)
            chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
            # Whatever GPUs there are, a check computes on the processor.
            os.putenv("CUDA_VISIBLE_DEVICES", "-1")
            original(context, *args, **kwargs)
            if chosen is None:
                os.unsetenv("CUDA_VISIBLE_DEVICES")
            else:
                os.putenv("CUDA_VISIBLE_DEVICES", chosen)
            self._pretended = interventions.pretend_gpus(
                context, self.scenario.gpus, chosen
            )
            return None

        return observed

    def _details(self, original):
        def observed(context, device):
            if device in self._pretended:
                return interventions.details_of_a_gpu()
            return original(context, device)

        return observed

    def _takes_hold(self, context) -> None:
        if not patches.has_taken_devices(context):
            self.event("devices", **self._devices(context))
            if self.scenario.devices_only:
                self.report_replaced()
                self.wait_for_the_end()

    def _pins(self, *args, **kwargs) -> None:
        self.event("pinned")

    def _devices(self, context) -> dict:
        """Numbers of the pretended GPUs that are visible, and that may grow."""
        visible_gpus = context.get_visible_devices("GPU")  # which lists them all first
        number = self._pretended
        growth = [n for gpu, n in number.items() if context.get_memory_growth(gpu)]
        if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true":
            growth = list(number.values())
        visible = [number[gpu] for gpu in visible_gpus if gpu in number]
        return {"visible": visible, "growth": growth}
