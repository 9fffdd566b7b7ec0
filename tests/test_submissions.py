"""What is taken in from a folder of submissions, careless and hostile ones too."""

import io
import os
import resource
import stat
import zipfile
from pathlib import Path

import pytest

from distcheck import files
from distcheck.errors import UserError
from utils.grading import submissions
from utils.grading.submissions import (
    HANDED_IN,
    MISSING,
    REFUSED,
    collect,
    slugs,
    visible,
)

PROGRAM = "print('Grüße')\n"


def zipped(path: Path, files: dict[str, str | bytes], **options) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def only(folder: Path):
    """The only submission; where it has a problem, it has no program."""
    (submission,) = collect(folder)
    assert (
        (submission.program is None)
        == (submission.problem is not None)
        == (submission.status != "handed in")
    )
    return submission


def test_a_file_a_folder_and_a_zip(tmp_path):
    (tmp_path / "alice.py").write_text(PROGRAM)
    (tmp_path / "bob/work/deep").mkdir(parents=True)
    (tmp_path / "bob/work/deep/mine.py").write_text(PROGRAM)
    (tmp_path / "bob/notes.txt").write_text("done")
    zipped(tmp_path / "carol.ZIP", {"work/": "", "work/mine.py": PROGRAM, "a.txt": "b"})
    handed_in = collect(tmp_path)
    assert [submission.learner for submission in handed_in] == ["alice", "bob", "carol"]
    assert {submission.program for submission in handed_in} == {PROGRAM.encode()}
    assert {submission.status for submission in handed_in} == {HANDED_IN}
    assert handed_in[2].source == tmp_path / "carol.ZIP"


def test_the_exercises_own_name_is_preferred_and_clutter_is_none(tmp_path):
    files = {
        "work/fashion_mnist.py": PROGRAM,
        "other.py": "1",
        "__MACOSX/work/fashion_mnist.py": "2",
        "__pycache__/fashion_mnist.py": "3",
        ".hidden/fashion_mnist.py": "4",
        "work/._fashion_mnist.py": "5",
    }
    zipped(tmp_path / "carol.zip", files)
    for name, text in files.items():
        path = tmp_path / "bob" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / ".DS_Store").write_text("clutter")
    (tmp_path / "__MACOSX").mkdir()
    handed_in = collect(tmp_path)
    assert [(submission.learner, submission.program) for submission in handed_in] == [
        ("bob", PROGRAM.encode()),
        ("carol", PROGRAM.encode()),
    ]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (["b.py", "a.py"], ("a.py", "b.py")),
        (
            ["x/fashion_mnist.py", "y/fashion_mnist.py", "a.py"],
            ("x/fashion_mnist.py", "y/fashion_mnist.py"),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_ambiguous_programs_are_named_but_none_is_taken(tmp_path, files, wanted, kind):
    if kind == "zip":
        zipped(tmp_path / "bob.zip", dict.fromkeys(files, PROGRAM))
    for name in files if kind == "folder" else []:
        path = tmp_path / "bob" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM)
    submission = only(tmp_path)
    assert (submission.status, submission.files) == (REFUSED, wanted)
    assert "2 of its programs" in submission.problem


@pytest.mark.parametrize("content", ["", " \n\t\n", "\ufeff"])
def test_an_empty_program_is_a_missing_one(tmp_path, content):
    (tmp_path / "alice.py").write_text(content, encoding="utf-8")
    assert only(tmp_path).status == MISSING
    assert "empty" in only(tmp_path).problem


def test_no_program_at_all_is_missing(tmp_path):
    (tmp_path / "bob").mkdir()
    zipped(tmp_path / "carol.zip", {"mine.ipynb": "{}"})
    handed_in = collect(tmp_path)
    assert [submission.status for submission in handed_in] == [MISSING, MISSING]
    assert handed_in[1].files == ("mine.ipynb",)


def test_text_in_another_encoding_is_refused_with_the_line(tmp_path):
    (tmp_path / "alice.py").write_bytes("a = 1\nb = 'ü'\n".encode("latin-1"))
    submission = only(tmp_path)
    assert submission.status == REFUSED
    assert "line 2" in submission.problem


def test_a_limit_is_a_limit(tmp_path):
    limit = submissions.MOST_PROGRAM_BYTES
    (tmp_path / "alice.py").write_bytes(b"#" * limit)
    (tmp_path / "bob.py").write_bytes(b"#" * (limit + 1))
    zipped(tmp_path / "carol.zip", {"a.py": b"#" * limit})
    zipped(tmp_path / "dave.zip", {"a.py": b"#" * (limit + 1)})
    handed_in = collect(tmp_path)
    assert [submission.status for submission in handed_in] == [HANDED_IN, REFUSED] * 2
    assert all(
        "larger than 0.1 MB" in submission.problem for submission in handed_in[1::2]
    )


@pytest.mark.parametrize("entry", ["alice.py", "alice", "alice.zip"])
def test_a_linked_submission_is_not_followed(tmp_path, entry):
    outside, folder = tmp_path / "outside", tmp_path / "class"
    (outside / "sub").mkdir(parents=True)
    folder.mkdir()
    (outside / "alice.py").write_text(PROGRAM)
    (outside / "sub/alice.py").write_text(PROGRAM)
    zipped(outside / "alice.zip", {"a.py": PROGRAM})
    target = outside / ("sub" if entry == "alice" else entry)
    (folder / entry).symlink_to(target)
    submission = only(folder)
    assert (submission.learner, submission.status) == ("alice", REFUSED)
    assert "link" in submission.problem
    with pytest.raises(files.Unfit):  # nor if it became one meanwhile
        files.read_regular(folder / entry, 1000)


@pytest.mark.parametrize("linked", ["file", "folder", "loop", "dangling"])
def test_a_link_in_a_folder_is_not_followed(tmp_path, linked):
    outside, bob = tmp_path / "outside", tmp_path / "class/bob"
    outside.mkdir()
    bob.mkdir(parents=True)
    (outside / "secret.py").write_text(PROGRAM)
    target = {
        "file": outside / "secret.py",
        "folder": outside,
        "loop": bob,
        "dangling": outside / "nothing.py",
    }[linked]
    (bob / "fashion_mnist.py").symlink_to(target)
    submission = only(tmp_path / "class")
    assert (submission.status, submission.files) == (REFUSED, ("fashion_mnist.py",))


def test_a_pipe_does_not_stop_everything(tmp_path):
    os.mkfifo(tmp_path / "alice.py")
    (tmp_path / "bob").mkdir()
    os.mkfifo(tmp_path / "bob/mine.py")
    assert [submission.problem for submission in collect(tmp_path)] == [
        "it is not a regular file"
    ] * 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_refused(tmp_path):
    (tmp_path / "alice.py").write_text(PROGRAM)
    (tmp_path / "alice.py").chmod(0)
    assert "can't be read" in only(tmp_path).problem


def test_a_folder_of_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_FILES", 10)
    (tmp_path / "bob").mkdir()
    for n in range(9):
        (tmp_path / f"bob/.hidden-{n}").touch()
    (tmp_path / "bob/a.py").write_text(PROGRAM)
    assert only(tmp_path).status == HANDED_IN
    (tmp_path / "bob/one more").touch()
    assert "more than 10 files" in only(tmp_path).problem


@pytest.mark.parametrize(
    "path",
    ["../a.py", "x/../../a.py", "/a.py", "/etc/cron.d/a.py", "C:\\a.py", "..\\a.py",
     "\\\\server\\a.py", "C:a.py", "__MACOSX/../../a.py", ".x/../a.py"],
)  # fmt: skip
def test_a_zip_that_leads_out_is_refused(tmp_path, path):
    zipped(tmp_path / "carol.zip", {path: PROGRAM, "fashion_mnist.py": PROGRAM})
    submission = only(tmp_path)
    assert submission.status == REFUSED
    assert "leads out" in submission.problem
    assert submission.files == (visible(path),)


def test_a_link_in_a_zip_is_refused(tmp_path):
    link = zipfile.ZipInfo("fashion_mnist.py")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "carol.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    submission = only(tmp_path)
    assert (submission.status, submission.files) == (REFUSED, ("fashion_mnist.py",))
    assert "link" in submission.problem


def in_little_memory(folder: Path):
    """The only submission, taken in with 200 MB more than there are now at most."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + 200_000_000
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        return only(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("name", ["alice.py", "alice.zip", "alice/a.py"])
def test_of_a_huge_file_no_more_is_read_than_is_allowed(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    with (tmp_path / name).open("wb") as file:
        file.truncate(2_000_000_000)
    assert "larger than" in in_little_memory(tmp_path).problem


def bomb(path: Path, gigabytes: float, method: int, name: str = "a.py") -> Path:
    with zipfile.ZipFile(path, "w", method, compresslevel=9) as archive:
        with archive.open(name, "w", force_zip64=True) as file:
            for _ in range(int(gigabytes * 100)):
                file.write(bytes(10_000_000))
    return path


def test_a_zip_that_says_it_is_a_bomb_is_refused(tmp_path):
    bomb(tmp_path / "carol.zip", 0.2, zipfile.ZIP_DEFLATED, "data.bin")
    assert "more than 100 MB" in in_little_memory(tmp_path).problem


def declared_as(path: Path, size: int) -> None:
    """Let the zip's list of files claim that its only file has `size` bytes."""
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = size.to_bytes(4, "little")
    path.write_bytes(content)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("size", [100, 2_000_000])
def test_a_zip_that_lies_about_a_bomb_is_refused(tmp_path, method, size):
    path = tmp_path / "carol.zip"
    with zipfile.ZipFile(path, "w", method, compresslevel=9) as archive:
        archive.writestr("a.py", b"#" * 400_000_000)
    declared_as(path, size)
    assert path.stat().st_size < 1_000_000
    assert in_little_memory(tmp_path).status == REFUSED


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_cannot_be_undone_in_pieces_is_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "carol.zip", "w", method) as archive:
        archive.writestr("a.py", PROGRAM)
    assert "unusual" in only(tmp_path).problem


def test_a_zip_of_too_many_files_is_refused(tmp_path):
    files = {f"{n}.txt": "" for n in range(submissions.MOST_FILES)}
    zipped(tmp_path / "carol.zip", {"a.py": PROGRAM, **files})
    assert "more than 2000 files" in only(tmp_path).problem


def test_a_large_zip_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_ZIP_BYTES", 50)
    zipped(tmp_path / "carol.zip", {"a.py": PROGRAM})
    assert "larger" in only(tmp_path).problem


def test_a_zip_in_a_zip_is_refused(tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("a.py", PROGRAM)
    zipped(tmp_path / "carol.zip", {"x.Zip": inner.getvalue(), "a.py": PROGRAM})
    assert only(tmp_path).problem == "there is a zip in the zip"


def test_an_encrypted_zip_is_refused(tmp_path):
    path = zipped(tmp_path / "carol.zip", {"a.py": PROGRAM})
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    path.write_bytes(content)
    assert "encrypted" in only(tmp_path).problem


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_path_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "carol.zip", "w") as archive:
        archive.writestr("a.py", PROGRAM)
        archive.writestr("a.py", "other()")
    assert "same path" in only(tmp_path).problem


def test_a_zip_broken_anywhere_is_a_problem_and_never_an_error(tmp_path):
    content = zipped(tmp_path / "carol.zip", {"a.py": PROGRAM * 20}).read_bytes()
    for n in range(len(content)):
        for broken in (content[:n], content[:n] + b"\xff" + content[n + 1 :]):
            (tmp_path / "carol.zip").write_bytes(broken)
            submission = only(tmp_path)
            if submission.status == HANDED_IN:
                assert submission.program == (PROGRAM * 20).encode()
    (tmp_path / "carol.zip").write_bytes(b"no zip at all")
    assert only(tmp_path).problem == "the zip is broken"


NAMES = [
    "a name with spaces",
    'O\'Neil "the" `great`',
    "=cmd()|' \\C calc'!A0",
    "<script>alert(1)<",
    "two\nlines\r\x1b[31m",
    "évelyne",
    "王伟",
    "\u202eecila",
    "x" * 250,
    "--help",
    "con",
    "Alice",
    "ALICE",
    "a.b.c",
    " ",
    "😀",
]


def test_strange_names_work(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(PROGRAM)
    (tmp_path / os.fsdecode(b"not \xff utf-8.py")).write_text(PROGRAM)
    handed_in = collect(tmp_path)
    learners = [submission.learner for submission in handed_in]
    assert {submission.status for submission in handed_in} == {HANDED_IN}
    assert len(set(learners)) == len(NAMES) + 1
    assert "two[U+000A]lines[U+000D][U+001B][31m" in learners
    assert "[U+202E]ecila" in learners
    assert r"not \xff utf-8" in learners
    assert all(name.isprintable() for name in learners)
    assert learners == sorted(learners, key=lambda name: (name.casefold(), name))

    files = slugs(learners)
    assert len({slug.lower() for slug in files.values()}) == len(learners)
    for slug in files.values():
        assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert slug[0] != "-"
        assert 0 < len(slug) < 60


def test_nobody_gets_anothers_file(tmp_path):
    slug = slugs(["Alice"])["Alice"]
    files = slugs(["Alice", slug, "alice"])
    assert files[slug] == slug
    assert files["alice"] == "alice"
    assert files["Alice"] == f"{slug}-2"
    assert slugs(["con"])["con"] != "con"


@pytest.mark.parametrize(
    "entries",
    [["alice.py", "alice.zip"], ["alice.py", "alice"], ["e\u0301.py", "\xe9.zip"],
     ["a\n.py", "a[U+000A].zip"]],
)  # fmt: skip
def test_two_submissions_of_a_learner_are_refused(tmp_path, entries):
    for entry in entries:
        if entry.endswith(".py"):
            (tmp_path / entry).write_text(PROGRAM)
        elif entry.endswith(".zip"):
            zipped(tmp_path / entry, {"a.py": PROGRAM})
        else:
            (tmp_path / entry).mkdir()
            (tmp_path / entry / "a.py").write_text(PROGRAM)
    submission = only(tmp_path)
    assert submission.status == REFUSED
    assert "2 submissions" in submission.problem
    assert sorted(submission.files) == sorted(map(visible, entries))


def test_another_kind_of_file_is_not_passed_over_in_silence(tmp_path):
    (tmp_path / "dave.tar.gz").write_bytes(b"...")
    submission = only(tmp_path)
    assert (submission.learner, submission.status) == ("dave.tar.gz", REFUSED)


def test_a_problem_never_names_the_learner(tmp_path):
    name = "xanthippe"
    entries = [f"{name}.zip", f"{name}.py", name, f"{name}.tar"]
    for entry in entries[:2] + entries[3:]:
        folder = tmp_path / entry.rpartition(".")[2]
        folder.mkdir()
        (folder / entry).write_bytes(b"\xff")
        assert name not in only(folder).problem
    (tmp_path / "folder" / name).mkdir(parents=True)
    (tmp_path / "folder" / name / f"{name}.py").write_bytes(b"\xff")
    assert name not in only(tmp_path / "folder").problem


def test_no_folder_and_an_empty_one_are_errors(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        collect(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no submissions"):
        collect(tmp_path)


def test_nothing_is_written(tmp_path):
    zipped(tmp_path / "carol.zip", {"x/a.py": PROGRAM})
    before = sorted(tmp_path.rglob("*"))
    collect(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_not_seen_is_made_visible():
    assert visible("a\x00b\x7f\x85\u2028\u200e\u2066\ud800\ufeff") == (
        "a[U+0000]b[U+007F][U+0085][U+2028][U+200E][U+2066][U+D800][U+FEFF]"
    )
    assert visible("a\nb\tc", but="\n\t") == "a\nb\tc"
    assert visible("Grüße\xa0王\u3000伟") == "Grüße\xa0王\u3000伟"
