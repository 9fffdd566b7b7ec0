"""The annotated source, what is rendered from it, and the markup's own mistakes."""

import ast
import itertools
import random
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from check_tables import TABLES

from distcheck import errors, parts, programs
from utils.base import course
from utils.lessons import hints, markup, outline, progress, work

SOURCE = """\
import a

# Step 1: Import b.
# It is needed below.
import b


def f(x):
    # Step 2: Add b to x.
    # was: if x:
    # was:     return x
    # was: return 0
    return x + b.one

# Step 1: Start b.
b.start()
"""

AFTER_0 = """\
import a

# TODO: Step 1: Import b.
# It is needed below.


def f(x):
    # TODO: Step 2: Add b to x.
    if x:
        return x
    return 0

# TODO: Step 1: Start b.
"""

AFTER_1 = """\
import a

# Step 1: Import b.
# It is needed below.
import b


def f(x):
    # TODO: Step 2: Add b to x.
    if x:
        return x
    return 0

# Step 1: Start b.
b.start()
"""


# How many steps or tasks each program has.
PARTS = {
    name: len(exercise.parts)
    for name, exercise in sorted(outline.read().exercises.items())
}
SOLUTIONS = course.PACKAGE_ROOT / "solutions"


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A scratch copy of the course's programs, with the working directory in it."""
    for folder in ("notebooks", "exercises", "solutions"):
        shutil.copytree(course.PACKAGE_ROOT / folder, tmp_path / folder)
    for name in PARTS:
        (tmp_path / "exercises" / f"{name}.py").write_text(programs_of(name)[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def renderings(name="fashion_mnist"):
    """What `course steps` should have generated in the course itself."""
    return markup.renderings(SOLUTIONS / f"{name}_solution.py")


def programs_of(name="fashion_mnist"):
    """The exercise, and the program after each step."""
    source = SOLUTIONS / f"{name}_solution.py"
    exercise = markup.program(source, 0, markup.exercise_of(source))
    return [exercise, *markup.stages(source, SOLUTIONS).values()]


def test_render_keeps_steps_up_to_n_and_turns_later_ones_into_todos():
    assert markup.parts_of(SOURCE) == (1, 2)
    assert markup.render(SOURCE, 0) == AFTER_0
    assert markup.render(SOURCE, 1) == AFTER_1
    after_2 = re.sub(r" *# was:.*\n", "", SOURCE)
    assert markup.render(SOURCE, 2) == after_2


def test_tasks_are_marked_as_steps_are():
    tasks = SOURCE.replace("Step 1", "Task A").replace("Step 2", "Task B")
    after_1 = AFTER_1.replace("Step 1", "Task A").replace("Step 2", "Task B")
    assert markup.parts_of(tasks) == ("A", "B")
    assert markup.render(tasks, 1) == markup.render(tasks, "A") == after_1
    bare = markup.without_answers(tasks)
    assert "# Task B: Add b to x.\n    # was: if x:" in bare
    assert work.todo_lines(after_1) == {"B": [9]}


@pytest.mark.parametrize("n", [-1, 3])
def test_render_refuses_a_step_that_is_not_there(n):
    with pytest.raises(ValueError, match=f"2 parts; can't render step {n}"):
        markup.render(SOURCE, n)


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("# Step 1: A.\na = 1\n# Step 2: B.\nb = 2\n", 3, "step 2 inside step 1"),
        ("# Step 1: A.\na = 1\n\n# Step 3: C.\nc = 3\n", 4, "without a step 2"),
        ("# Step 2: B.\nb = 1\n", 1, "without a step 1"),
        ("a = 1\n# was: a = 0\n", 2, "outside a step"),
        ("# Step 1: A.\na = 1\n# was: a = 0\n", 3, "after the new code"),
        ("# Step 1: A.\n    a = 1\n", 2, "wrong indentation"),
        ("if x:\n    # Step 1: A.\n  # was: a\n    a = 1\n", 2, "no code of its own"),
        ("# Step 1: A.\n  # was: a = 0\na = 1\n", 2, "not indented as step 1"),
        ("# Step 1: A.\n# was: a = 0\n\na = 1\n", 1, "no code of its own"),
        ("if x:\n    # Step 1: A.\na = 1\n", 2, "no code of its own"),
        ("# Step 1 A.\na = 1\n", 1, "begins with `# Step N: text`"),
        ("# step 1: A.\na = 1\n", 1, "begins with `# Step N: text`"),
        ("# TODO: Step 1: A.\na = 1\n", 1, "a TODO in an annotated source"),
        ("# Task A: A.\na = 1\n# Task B: B.\nb = 2\n", 3, "task B inside task A"),
        ("# Task A: A.\na = 1\n\n# Task C: C.\nc = 3\n", 4, "without a task B"),
        ("# Step 1: A.\na = 1\n\n# Task B: B.\nb = 3\n", 4, "without a step 2"),
        ("# Task A A.\na = 1\n", 1, "a task with `# Task X: text`"),
        ("# Task 1: A.\na = 1\n", 1, "a task with `# Task X: text`"),
        ("# TODO: Task A: A.\na = 1\n", 1, "a TODO in an annotated source"),
    ],
)
def test_mistakes_in_the_markup_are_named_with_their_line(source, line, what):
    with pytest.raises(markup.MarkupError, match=f"prog, line {line}: .*{what}"):
        markup.render(source, 0, "prog")


def test_generated_files_are_up_to_date():
    stale = [
        path.relative_to(course.PACKAGE_ROOT).as_posix()
        for name in PARTS
        for path, text in renderings(name).items()
        if not path.exists() or path.read_bytes() != text.encode()
    ]
    assert not stale, f"{stale} differ from the annotated source: run `course steps`"


def test_one_exercise_keeps_the_programs_after_its_steps_the_others_none():
    names = sorted(path.name for path in SOLUTIONS.glob("*_after_step_*.py"))
    assert names == [f"{markup.KEPT}_after_step_{n:02}.py" for n in range(1, 7)]
    assert [path.name for path in [*renderings()][1:]] == names
    assert [path.name for path in renderings("mirrored")] == ["mirrored.py"]


def test_the_sources_are_known():
    names = [path.stem for path in markup.sources(course.PACKAGE_ROOT)]
    assert names == [f"{name}_solution" for name in PARTS]


@pytest.mark.parametrize(("name", "count"), PARTS.items(), ids=PARTS)
def test_every_rendering_parses_and_has_the_todos_that_are_left(name, count):
    source = (SOLUTIONS / f"{name}_solution.py").read_text()
    marks = [parts.of(*m) for m in re.findall(rf"^ *# {parts.NAMED}:", source, re.M)]
    known = (parts.steps if name == "fashion_mnist" else parts.tasks)(count)
    assert set(marks) == set(known)
    assert len(programs_of(name)) == count + 1
    new = {
        "bandwidth": "for _ in range(args.warm_up):",
        "fashion_mnist": "hvd",
        "from_files": "shard(hvd.size(), hvd.rank())",
        "scaled": "full_lr = args.base_lr * hvd.size()",
        "survive": "CheckpointManager(",
        "zero": "filled = -(-count",
        "servers": "TFConfigClusterResolver(",
        "way_on": "jax.process_index()",
    }.get(name, "MirroredStrategy(")
    for n, text in enumerate(programs_of(name)):
        ast.parse(text)
        todos = re.findall(rf"# TODO: {parts.NAMED}:", text)
        left = [part for part in marks if part not in known[:n]]
        assert [parts.of(*m) for m in todos] == left
        assert "# was:" not in text
        assert (new in re.sub("#.*", "", text)) == (n > 0)


def test_renderings_say_that_they_are_generated_but_the_exercise_does_not():
    exercise, *solutions = programs_of()
    assert "Generated" not in exercise
    for text in solutions:
        assert text.startswith("# Generated by `course steps` from")


@pytest.mark.parametrize("source", markup.sources(course.PACKAGE_ROOT), ids=PARTS)
def test_a_step_only_adds_to_what_earlier_steps_wrote(source):
    """No step takes away a line that an earlier one brought in."""
    text = source.read_text()
    count = len(markup.parts_of(text))
    texts = [markup.render(text, n).splitlines() for n in range(count + 1)]
    original = set(texts[0])
    brought = set()
    for before, after in itertools.pairwise(texts):
        gone = set(before) - set(after) - original
        assert not {line for line in gone & brought if "TODO" not in line[:10]}
        brought |= set(after) - set(before)


def test_one_changed_character_is_noticed(copy):
    assert work.generate(check=True) == []
    for path in [*copy.glob("solutions/*_after_step_*.py"), *copy.glob("exercises/f*")]:
        text = path.read_text()
        if path.suffix != ".py":
            continue
        path.write_text(text.replace("e", "E", 1))
        assert work.generate(check=True) == [path]
        path.write_text(text)


def test_generate_repairs_solutions_and_a_missing_exercise(copy):
    exercise = copy / "exercises" / "fashion_mnist.py"
    solution = copy / "solutions" / "fashion_mnist_after_step_03.py"
    wanted = exercise.read_text(), solution.read_text()
    exercise.unlink()
    solution.write_text("broken")
    assert set(work.generate()) == {exercise, solution}
    assert (exercise.read_text(), solution.read_text()) == wanted
    assert work.generate() == []


def test_a_learners_work_is_never_overwritten(copy):
    exercise = copy / "exercises" / "fashion_mnist.py"
    exercise.write_text(exercise.read_text() + "# mine\n")
    with pytest.raises(errors.UserError, match="holds work of yours"):
        work.generate()
    assert exercise.read_text().endswith("# mine\n")

    work.generate(start_over=True)
    (kept,) = copy.glob("exercises/fashion_mnist_kept_*.py")
    assert kept.read_text().endswith("# mine\n")
    assert work.missing_parts().keys() == {1, 2, 3, 4, 5, 6}


def test_an_exercise_that_is_one_of_the_renderings_may_be_replaced(copy):
    exercise = copy / "exercises" / "fashion_mnist.py"
    source = copy / "solutions" / "fashion_mnist_solution.py"
    solved = markup.render(source.read_text(), 4)
    exercise.write_text(solved.replace(f"solutions/{source.name}", "exercises/x.py"))
    with pytest.raises(errors.UserError):
        work.generate()
    name = "exercises/fashion_mnist.py"
    exercise.write_text(solved.replace(f"solutions/{source.name}", name))
    assert work.generate() == [exercise]


def test_the_program_after_each_step_is_written_where_it_is_asked_for(copy):
    folder = copy / "new" / "here"
    written = work.write_steps(folder, "mirrored")
    names = [f"mirrored_after_task_{task}.py" for task in "ABCD"]
    assert written == [Path("new", "here", name) for name in names]
    source = (copy / "solutions" / "mirrored_solution.py").read_text()
    for n, path in enumerate(written, 1):
        note, text = path.read_text().split("\n", 1)
        assert "Generated" in note
        assert f"python new/here/{path.name} --data" in text
        path.write_text(text.replace(f"new/here/{path.name}", "X"))
        rendered = markup.render(source, n)
        assert path.read_text() == rendered.replace(
            "solutions/mirrored_solution.py", "X"
        )
    assert sorted(path.name for path in folder.iterdir()) == names

    everything = work.write_steps(copy / "all")
    assert len(everything) == sum(PARTS.values())
    assert work.write_steps(copy / "all") == everything
    # Beside those that the course keeps, which are the same.
    assert len(work.write_steps(copy / "solutions")) == sum(PARTS.values())
    assert work.generate(check=True) == []
    with pytest.raises(
        errors.UserError, match=r"no doodles\.py with steps or tasks; it has \w"
    ):
        work.write_steps(folder, "doodles")


def unchanging(path):
    """What stays the same while a file is only read, unlike the time of access."""
    facts = path.lstat()
    return facts.st_ino, facts.st_mode, facts.st_size, facts.st_mtime_ns


@pytest.mark.parametrize("in_the_way", ["text", "bytes", "folder", "link"])
def test_the_programs_after_the_steps_overwrite_nothing(copy, in_the_way):
    path = copy / "out" / "survive_after_task_C.py"
    path.parent.mkdir()
    if in_the_way == "folder":
        path.mkdir()
    elif in_the_way == "link":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"# mine\n" if in_the_way == "text" else b"\xff\0")
    before = unchanging(path)
    with pytest.raises(errors.UserError, match=r"out/survive_after_task_C\.py would"):
        work.write_steps("out")
    assert unchanging(path) == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_named(copy):
    (copy / "file").write_text("mine")
    for folder in ("file", "file/below"):
        with pytest.raises(errors.UserError, match=f"folder {folder} can't be made"):
            work.write_steps(folder)
    assert (copy / "file").read_text() == "mine"


def test_need_steps_names_the_first_missing_step_and_its_lines(copy, capsys):
    exercise = copy / "exercises" / "fashion_mnist.py"
    todo = [
        number
        for number, line in enumerate(exercise.read_text().splitlines(), start=1)
        if "TODO: Step 1" in line
    ]
    with pytest.raises(work.StepMissing) as missing:
        work.need_steps(2)
    assert "step 1 is still to do" in str(missing.value)
    assert f"lines {todo[0]}, {todo[1]}." in str(missing.value)

    exercise.write_text(programs_of()[2])
    work.need_steps(2)
    assert "Steps 1 to 2 are done in" in capsys.readouterr().out
    with pytest.raises(work.StepMissing, match="step 3 is still to do"):
        work.need_steps(3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no program"),
        (b"x = (1,\nprint(x)\n", r"not valid Python, line 1: `x = "),
        (b"x = '\xff\xfe'\n", "not valid Python|not a Python text file"),
        (b"x = 1\0", "not valid Python|not a Python text file"),
    ],
)
def test_programs_that_cannot_be_read_are_named(copy, content, message):
    path = copy / "exercises" / "fashion_mnist.py"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.UserError, match=message) as error:
        work.need_steps(1)
    assert "fashion_mnist.py" in str(error.value)


@pytest.mark.parametrize(("name", "count"), PARTS.items(), ids=PARTS)
def test_there_are_three_hints_for_every_part(name, count):
    known = hints.of(name)
    assert len(known) == count
    for texts in known.values():
        assert len(texts) == 3
        assert all(len(text) > 40 for text in texts)


@pytest.mark.parametrize("name", TABLES)
def test_what_a_check_finds_has_a_hint_of_its_own(name):
    """All that the tables of wrong programs, which hold each fault, are caught by."""
    faults = {program.caught for program in TABLES[name].wrong}
    assert [fault for fault in sorted(faults) if not hints.about(fault, name)] == []


def test_the_same_fault_in_another_step_has_another_hint():
    assert hints.about("step-3.sum") != hints.about("step-6.sum")
    assert hints.about("step-3.right") is None


def test_a_broken_hints_file_is_named(copy):
    path = copy / "exercises" / "hints.md"
    path.write_text(path.read_text().replace("### Place", "### Palce", 1))
    with pytest.raises(errors.UserError, match="Step 1"):
        hints.of()


def test_there_are_no_hints_for_a_program_without_steps(copy):
    with pytest.raises(errors.UserError, match="for fashion_mnist, scaled, survive"):
        progress.hint("A", "doodles")


def test_hints_go_one_deeper_each_time(copy):
    assert progress.hints_shown("fashion_mnist", 2) == 0
    for level in (0, 1, 2, 2):
        assert hints.of()[2][level] in progress.hint(2).data
    assert "hint(2)" not in progress.hint(2).data
    assert hints.of()[2][0] in progress.hint(2, level=1).data
    assert "More: `hint(2)`" in progress.hint(2, level=1).data
    assert progress.hints_shown("fashion_mnist", 2) == 3
    assert progress.hints_shown("mirrored", "B") == 0
    assert 'More: `hint("B", "mirrored")`' in progress.hint("b", "mirrored").data


def test_hint_and_diff_for_notebooks(copy):
    with pytest.raises(errors.UserError, match="no hint 4 for step 2 of fashion_mnist"):
        progress.hint(2, level=4)
    changes = work.what_changed(3)
    assert "DistributedOptimizer" in changes._repr_html_()
    diff = repr(changes).splitlines()
    added = [line for line in diff if line.startswith("+") and "+++" not in line]
    assert "+optimizer = hvd.DistributedOptimizer(optimizer)" in added


def test_an_excerpt_is_the_part_between_two_lines(copy):
    text = repr(work.excerpt("def cbr", "def conv_block"))
    assert text.startswith("def cbr(x, filters):")
    assert text.endswith("return layers.ReLU()(x)")
    assert repr(work.excerpt("if is_root:", None)).splitlines()[-1].startswith("    ")
    with pytest.raises(errors.UserError, match="no part from `def nothing`"):
        work.excerpt("def nothing", "def conv_block")


def test_the_difference_from_ones_own_program(copy):
    exercise = copy / "exercises" / "fashion_mnist.py"
    source = (copy / "solutions" / "fashion_mnist_solution.py").read_text()
    text = markup.render(source, 3).replace(
        "solutions/fashion_mnist_solution.py", "exercises/fashion_mnist.py"
    )
    exercise.write_text(text)
    assert work.yours_and_ours(3) == ""
    assert "+callbacks.append(hvd.callbacks.Broad" in work.yours_and_ours(4)
    with pytest.raises(errors.UserError, match="there is no `7`"):
        work.yours_and_ours(7)
    (copy / "other.py").write_text("x = 1\n")
    with pytest.raises(errors.UserError, match=r"no other\.py with steps or tasks"):
        work.yours_and_ours(1, copy / "other.py")


class Pause:
    """Garbage that lets another thread run when it is collected."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(0.0001)


def test_programs_can_be_parsed_by_several_threads_at_once():
    text = (course.PACKAGE_ROOT / "solutions/fashion_mnist_solution.py").read_text()

    def parse(_):
        _garbage = [Pause() for _ in range(100)]
        del _garbage
        return type(programs.syntax_tree(text, "program"))

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(parse, range(40))) == {ast.Module}


CODINGS = (
    *(b"#", b"#", b"coding", b"coding", b":", b"=", b" ", b"\t", b"\f", b"\r", b"\n"),
    *(b"latin-1", b"raw_unicode_escape", b"utf8", b"UTF_8", b"utf-7", b"utf-8-x"),
    *(b"\xef\xbb\xbf", b"-*-", b"x=1", b'"', b"\\"),
)


@pytest.mark.parametrize("seed", range(4))
def test_a_text_is_read_as_python_reads_it(seed):
    """Whatever stands in its first lines; what Python reads otherwise is refused."""
    chance = random.Random(seed)
    read = 0
    for _ in range(3000):
        head = b"".join(chance.choices(CODINGS, k=chance.randint(0, 9)))
        program = head + '\nname = "é"\n'.encode()
        names = {}
        try:
            text = programs.as_python_reads_it(program)
            exec(compile(text.encode(), "program", "exec"), names)
        except (SyntaxError, ValueError, NameError, TypeError):
            continue  # it does not run
        assert names["name"] == "é", head
        read += 1
    assert read > 300


@pytest.mark.parametrize(
    "declared", [b"latin-1", b"raw_unicode_escape", b"utf-7", b"no-such-coding"]
)
def test_another_coding_than_utf_8_is_not_read(declared):
    for before in (b"", b"\n", b"#!/usr/bin/python\n", b"\f\r", b"\r"):
        with pytest.raises(SyntaxError, match="coding"):
            programs.as_python_reads_it(before + b"# coding: " + declared + b"\n")
    assert programs.as_python_reads_it(b"\xef\xbb\xbfx\r\ny\rz") == "x\ny\nz"
    assert programs.as_python_reads_it(b"# -*- coding: utf8 -*-\n")
