"""The clinic: every fault is there, is seen, and is gone once it is cured."""

import re

import pytest

from distcheck import errors, show
from utils.checking import clinic, troubleshooting
from utils.lessons import work
from utils.running import explain, stacks
from utils.running.result import Run

SHOWN_BY = {
    "A collective on one rank only": "It ends, and ends well",
    "Unequal steps": "It ends, and ends well",
    "Collectives in another order": "It ends, and ends well",
    "Validation on one rank only": "It ends, and ends well",
    "One file, many writers": "Rank 0 alone writes files",
    "The optimizer is not wrapped": "All workers have the same weights",
    "No broadcast": "All workers have the same weights",
    "All on one GPU": "Every worker has a GPU of its own",
    "A GPU that it can't see": "Every worker has a GPU of its own",
    "The learning rate is not scaled": "The learning rate fits the number of workers",
    "The learning rate is scaled twice": "The learning rate fits the number of workers",
    "The same images on all ranks": "Every worker has images of its own",
    "A download for all": "It ends, and ends well",
    "A straggler": "Nobody keeps the others waiting",
    "Slow, not stuck": "",  # which is the point of it
    "Softmax twice": "It validates, and learns",
}
# Where Horovod warns of a stall, and all workers are looked into.
STALLS = (
    "A collective on one rank only",
    "Unequal steps",
    "Collectives in another order",
    "Validation on one rank only",
    "Slow, not stuck",
)


# ------------------------------------------------------------ the page


def test_every_case_has_a_disease_of_its_own_that_is_on_the_page():
    names = [case.disease for case in clinic.cases()]
    assert len(set(names)) == len(names) >= 12
    assert set(names) == set(SHOWN_BY) <= set(clinic.diseases())


SHOWN_BY_GITHUB = 512 * 1024  # bytes of Markdown; of a longer page only a part


def test_the_pages_say_what_the_table_and_the_clinic_know():
    texts = troubleshooting.generated()
    for path, text in texts.items():
        assert path.read_text() == text, "python -m utils.checking.troubleshooting"
        assert len(text.encode()) < SHOWN_BY_GITHUB, path.name
    by_message = "".join(troubleshooting.pages().values())
    for message in explain.messages():
        shown = "\n".join(troubleshooting.lines_of(message.cure))
        assert f"```text\n{shown}\n```" in by_message
    page = texts[clinic.page()]
    assert re.findall("^## (.*)", page, re.M) == [
        *("By message", "By symptom", "By disease"),
    ]
    leads, by_symptom, by_disease = re.split("^## By ", page, flags=re.M)[1:]
    for path in troubleshooting.pages():
        assert f"]({path.relative_to(clinic.page().parent).as_posix()})" in leads
    for symptom in troubleshooting.symptoms():
        for also in symptom.get("also", []):
            assert f"- {also['seen']} {also['cause']} {also['cure']} More: [" in page
    for disease in clinic.diseases():
        assert f"See [{disease}](#" in by_symptom, "which symptom has it?"
        assert f"\n### {disease}\n" in by_disease


def test_a_symptom_of_no_disease_is_refused(monkeypatch):
    table = [{"what": "It is hot", "diseases": ["flu"]}]
    monkeypatch.setattr(troubleshooting, "symptoms", lambda: table)
    with pytest.raises(errors.UserError, match="there is no disease 'flu'"):
        troubleshooting.by_symptom()


def test_every_disease_names_where_it_was_met():
    for name, texts in clinic.diseases().items():
        threads = texts["Upstream"].split(", ")
        for thread in threads:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread), (name, thread)


def test_no_program_tells_what_it_has():
    for case in clinic.cases():
        assert case.disease.lower() not in case.ill.lower()
        assert case.ill != case.healthy


# ------------------------------------------------------------ naming it


def test_the_right_name_is_told_from_a_wrong_one(own_course):
    right = repr(clinic.diagnose(2, "Unequal steps"))
    assert "Yes: Unequal steps" in right
    assert clinic.diseases()["Unequal steps"]["Cure"] in right
    wrong = repr(clinic.diagnose(2, "A straggler"))
    assert "It is not that" in wrong
    assert clinic.diseases()["A straggler"]["Symptom"] in wrong
    assert clinic.diseases()["A straggler"]["Tell it apart"] in wrong
    assert "Unequal steps" not in wrong


def test_without_a_name_all_are_listed(own_course):
    listed = repr(clinic.diagnose(1))
    assert all(name in listed for name in clinic.diseases())
    names = [row[0] for row in clinic.diagnose(1).parts[0].rows]
    assert names == sorted(names)
    assert names != [case.disease for case in clinic.cases()]  # that order would tell


def test_what_is_unchanged_is_not_called_cured(own_course, monkeypatch):
    """Nor is it run: nothing could come of it."""
    monkeypatch.setattr(clinic, "observe", None)
    case = clinic.case(14)  # all signs of health are there
    for there in (False, True):
        if there:
            case.program.write_text(case.ill)
        page = clinic.cure(14)
        assert "is unchanged" in repr(page)
        assert not any(isinstance(part, show.Table) for part in page.parts)


def test_a_long_line_of_the_log_keeps_whole_names():
    names = [f"DistributedSGD_Allreduce/cond_{n}/HorovodAllreduce" for n in range(20)]
    line = f"0!: 1: [{', '.join(names)}]"
    shown, _, rest = clinic._short(line).partition(" ... ")
    kept = shown.partition("[")[2].split(", ")
    assert kept == names[: len(kept)]
    assert rest == f"and {len(names) - len(kept)} more names"
    assert clinic._short("0: all is well") == "0: all is well"
    words = clinic._short("word " * 200)
    assert words.endswith("more words")


def observed(folder, **facts):
    """As if a program of case 14 had been run."""
    run = Run("clinic_14.py", 2, "mpirun", folder)
    run.log.write_text("0: hello\n")
    return clinic.Observed(run, folder, **facts)


def test_what_is_shown_has_two_looks_the_limits_files_and_history(
    own_course, monkeypatch
):
    def looks(function):
        frames = (stacks.Frame("clinic_14.py", 57, function),)
        return [stacks.Stack(rank, frames, 0.5) for rank in (0, 1)]

    (own_course / "0").mkdir()
    history = "epoch,accuracy,loss\n0,0.7500,1.7312\n"
    (own_course / "0" / "history.csv").write_text(history)
    seen = observed(
        own_course,
        stood_still=looks("sleep"),
        later=looks("fit"),
        written={0: ["history.csv"], 1: ["weights.h5"]},
    )
    monkeypatch.setattr(clinic, "observe", lambda *_: seen)
    admission = clinic.admit(14)
    page = repr(admission)
    for words in ("sleep", "fit", "6 s later", "after 3 s", "after 25 s", "150 s"):
        assert words in page
    assert "1 | weights.h5" in page
    assert "1 | 0.75 | 1.731" in page
    assert "sleep" in repr(admission.stacks)
    assert "sleep" not in repr(admission.log)
    both = clinic.looks(admission, admission).rows
    assert [row[:2] for row in both] == [("14", "0"), ("14", "1")] * 2
    seen.later.clear()
    assert "it had ended" in repr(clinic.looks(admission))
    assert "ended before a second look" in repr(clinic.admit(14))


def test_what_there_is_not_is_refused(own_course):
    with pytest.raises(errors.UserError, match="there is no case 99"):
        clinic.admit(99)
    with pytest.raises(errors.UserError, match="no disease 'flu'"):
        clinic.diagnose(1, "flu")


def test_a_slip_in_the_learner_s_program_is_named_as_theirs(own_course):
    clinic.case(6).program.write_text("x = (\n")
    with pytest.raises(errors.UserError, match=r"exercises/clinic_06\.py .* line 1"):
        clinic.cure(6)


# ------------------------------------------------------------ for real


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", clinic.cases(), ids=lambda case: case.disease)
def test_the_fault_is_seen(case, own_course):
    case.program.write_text(case.ill)
    observed = clinic.observe(case.program, case)
    wrong = {name for name, what in clinic.signs_of(observed, case).items() if what}
    if case.disease in STALLS:  # others may seem to, where a first batch takes long
        assert [stack.rank for stack in observed.stood_still] == [0, 1]
        if case.disease != "Slow, not stuck":  # it may have ended by then
            assert [stack.rank for stack in observed.later] == [0, 1]
    expected = {SHOWN_BY[case.disease]} - {""}
    if expected == {"It ends, and ends well"}:  # more may be wrong with what broke off
        assert expected <= wrong
    else:
        assert wrong == expected


CURED = {case.healthy.partition("import")[2]: case for case in clinic.cases()}.values()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CURED, ids=lambda case: case.disease)
def test_what_is_cured_is_healthy(case, own_course):
    case.program.write_text(case.healthy)
    assert "Your program" in repr(clinic.cure(case.number))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_case_12_is_met_by_its_message(own_course):
    clinic.admit(12)
    _, lines = explain.open_log(None)  # of the newest run
    first = explain.explain(lines).first
    assert first.message.id == "data.half-a-json"
    assert first.ranks in ([0], [1])  # whichever came while the other one downloaded


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_learner_s_program_is_left_alone_and_judged(own_course):
    case = clinic.case(6)
    text = f"{case.ill}# I'll find it\n"
    case.program.write_text(text)
    page = repr(clinic.admit(6))
    assert case.program.read_text() == text
    assert case.complaint in page
    assert "weights" in page
    with pytest.raises(work.StepMissing, match="case 6 is not cured"):
        clinic.cure(6)


@pytest.mark.slow
def test_what_trains_nothing_is_not_healthy(own_course):
    case = clinic.case(6)
    case.program.write_text("print('hello')\n")
    signs = clinic.examine(case.program, case)
    unknown = [name for name, what in signs.items() if what == "it trained no epoch"]
    assert len(unknown) == 4
    assert signs["It validates, and learns"]


@pytest.mark.slow
def test_a_cure_that_leaves_images_out_is_none(own_course):
    """All workers make the same steps, so nothing stands still; but too few."""
    case = clinic.case(2)
    right = "steps = len(dataset.x_train) // batch_size // size\n"
    assert right in case.healthy
    case.program.write_text(case.healthy.replace(right, "steps = 20\n"))
    signs = clinic.examine(case.program, case)
    assert [what for what in signs.values() if what] == [
        "an epoch had 20 steps; 30 are needed for all images"
    ]
