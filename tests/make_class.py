"""Make a class of thirty submissions, right, wrong and hostile, to try grading on.

python tests/make_class.py CLASS
course grade CLASS --out GRADES --jobs 2
"""

import sys
import zipfile
from pathlib import Path

from check_tables import TABLES
from test_examine import ATTACKS

from utils.checking import exercises
from utils.lessons import markup

SOURCE = exercises.find("fashion_mnist").annotated.read_text()

NAMES = (
    "Ada Alba Amina Bo Chen Dmitri Edda Farah Goran Hana Ines Jonas Kaya Liam Mei "
    "Nils Olga"
).split()
HOSTILE = (
    "endless loop",
    "prints PASS",
    "patches Horovod",
    "memory without end",
    "output without end",
)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    finished = markup.render(SOURCE, 6)
    programs = [finished, *(markup.render(SOURCE, n) for n in range(6))]
    programs += [program.text for program in TABLES["fashion_mnist"].right[::7]]
    programs += [program.text for program in TABLES["fashion_mnist"].wrong[::7]]
    for name, text in zip(NAMES, programs, strict=False):
        (folder / f"{name}.py").write_text(text)
    for attack in ATTACKS:
        if attack.name in HOSTILE:
            text = f"{attack.code}\n{finished}"
            (folder / f"Mallory, who {attack.name}.py").write_text(text)

    (folder / "Rosa").mkdir()
    (folder / "Rosa" / "fashion_mnist.py").write_text(finished)
    with zipfile.ZipFile(folder / "Sven.zip", "w") as archive:
        archive.writestr("homework/fashion_mnist.py", markup.render(SOURCE, 4))
    with zipfile.ZipFile(folder / "Trudy.zip", "w") as archive:
        archive.writestr("../../fashion_mnist.py", finished)
    with zipfile.ZipFile(
        folder / "Uma.zip", "w", compression=zipfile.ZIP_DEFLATED
    ) as archive:
        for n in range(20):
            archive.writestr(f"{n}.py", bytes(50_000_000))
    (folder / "=HYPERLINK(1).py").write_text(markup.render(SOURCE, 2))
    (folder / "<b>Victor<b>.py").write_bytes(b"print('\xff')")
    (folder / "Walter.py").write_text("")
    (folder / "Xenia").mkdir()


if __name__ == "__main__":
    main()
