"""What TensorBoard's Input Pipeline Analysis says of profiles.

    .venv-xprof/bin/python -m utils.measure.programs.input_bound FILE.xplane.pb ...

Prints a sentence for each file. `make xprof` makes the environment.
"""

import json
import sys

from xprof.convert import raw_to_tool_data

for path in sys.argv[1:]:
    tables, _ = raw_to_tool_data.xspace_to_tool_data(
        [path], "input_pipeline_analyzer", {}
    )
    for table in json.loads(tables):
        sentence = (table.get("p") or {}).get("input_conclusion")
        if sentence:
            print(sentence)
