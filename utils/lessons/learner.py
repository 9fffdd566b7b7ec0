"""Papermill's engine `learner`: executes a notebook as somebody does who learns by it.

The notebook begins with the exercise as it was handed out. Where a cell stops because
a step or a task is not done, it is done, and the cell run again. What the cell had
shown is kept in its metadata, `stopped`, a list of outputs for each time; so one
execution shows both how the notebook ends without the exercise and how it goes on with
it.
"""

from pathlib import Path

from nbclient.exceptions import CellExecutionError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine
from papermill.log import logger

from utils.lessons import markup, notebook_rules, outline


class LearnerEngine(Engine):
    @classmethod
    def execute_managed_notebook(
        cls, nb_man, kernel_name, log_output=False, start_timeout=60, **_
    ):
        """Execute `nb_man.nb`; to be called by papermill, in the notebook's folder."""
        Learner(
            nb_man,
            kernel_name=kernel_name,
            log_output=log_output,
            startup_timeout=start_timeout,
            timeout=None,
            log=logger,
        ).execute()


class Learner(PapermillNotebookClient):
    def execute_cell(self, cell, cell_index, *arguments, **options):
        """Run a cell, and after each part that it has missed, run it again."""
        print(f"{notebook_rules.AT_CELL}{cell_index + 1}", flush=True)
        notebook = Path(self.nb.metadata.papermill["input_path"])
        name = outline.exercise_of(notebook.stem)
        source = Path("..", "solutions", f"{name}_solution.py")
        exercise = Path("..", "exercises", f"{name}.py")
        done = 0
        while True:
            try:
                return super().execute_cell(cell, cell_index, *arguments, **options)
            except CellExecutionError as error:
                part = notebook_rules.missing_part(error)
                if part <= done or part > len(markup.parts_of(source.read_text())):
                    raise  # of no part of this exercise, or of one that is done by now
                done = part
                cell.metadata.setdefault("stopped", []).append(cell.outputs)
                exercise.write_text(markup.program(source, part, exercise))
