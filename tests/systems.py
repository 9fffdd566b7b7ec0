"""Sets the course up on systems that this machine isn't, and reports how it went.

    python3 tests/systems.py systems      Debian 13 and testing, every compiler there is
    python3 tests/systems.py gpu-build    Horovod for GPUs, built where there is none
    python3 tests/systems.py headers      Horovod's headers, read by the newest g++

The Makefile has a target for each. A system is a folder that mmdebstrap fills with
Debian's packages and that processes take for the whole disk (chroot), so this needs
Debian or Ubuntu, mmdebstrap and root. Where one of these is missing, it says so and
ends well. Each call makes its systems anew, in `.systems/`, from the commit that is
checked out, with an empty environment; what everything printed is kept in its logs.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".systems"
PEERS = ROOT.parent / "shared" / "peers" / "horovod-0.28.1" / "test"
NEEDED = "git make python3 python3-venv ca-certificates"
# The index of a release that is still changing may be older than it should be.
MMDEBSTRAP = ("mmdebstrap", "--variant=apt", "--components=main contrib non-free")
MMDEBSTRAP += ("--aptopt=Acquire::Check-Valid-Until false",)
# What of this machine a system shares: how to reach a package index, and what was
# fetched from one before.
SHARED = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")
SHARED += ("/etc/ssl/certs/ca-certificates.crt",)
PASSED_ON = re.compile(r"PIP_|UV_|SSL_|https?_proxy|no_proxy|CI$", re.I)
INSIDE = """
root=$1; shift
mount -t proc proc "$root/proc"
# Devices of its own: what packages make there is gone with the system.
mount -t tmpfs devices "$root/dev"
mkdir "$root/dev/shm"
mount -t tmpfs memory "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount --rbind /sys "$root/sys"
for shared in $1; do
    from=${shared%%=*} to=$root${shared#*=}
    if [ -d "$from" ]; then mkdir -p "$to"; else touch "$to"; fi
    mount --bind "$from" "$to"
done
shift
exec chroot "$root" "$@"
"""
HEADERS = """
cd /root/horovod
set -- third_party/boost/*/include third_party/*/include third_party/eigen
set -- -I. -isystem third_party/gloo $(printf -- '-isystem %s ' "$@")
headers="$(ls horovod/common/*.h) third_party/gloo/gloo/types.h"
for header in $headers third_party/flatbuffers/include/flatbuffers/flatbuffers.h; do
    g++ -std=c++17 -fsyntax-only -w -x c++ "$@" "$header"
done
read=$(echo $headers | wc -w)
echo "$(g++ --version | head -n 1) reads Horovod's $read headers and flatbuffers."
"""


class Failed(Exception):
    """A step of the set-up did not end as it should. The message names its log."""


class System:
    """A Debian in a folder of its own. name: of the release, such as trixie."""

    def __init__(self, name, packages):
        self.name = name
        self.root = FOLDER / name
        self.log = FOLDER / f"{name}.log"
        self.log.write_text("")
        remove(self.root)
        include = "--include=" + ",".join(f"{NEEDED} {packages}".split())
        self.step(f"{name}: a system with {packages}", 30, *MMDEBSTRAP, include, name,
                  self.root)  # fmt: skip
        checkout = ("git", "clone", "--quiet", ROOT, self.root / "root" / "course")
        self.step(f"{name}: the course", 5, *checkout)

    def step(self, title, minutes, *command, fails=None):
        """Run a command of this machine's, its output going to the log; return that.

        fails: words that its output must have when it fails, as it must then.
        Raises Failed.
        """
        print(f"{title} ...", end=" ", flush=True)
        started = time.monotonic()
        with self.log.open("a") as log:
            print("\n$", shlex.join(map(str, command)), file=log, flush=True)
            start = log.tell()
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )
            try:
                status = process.wait(minutes * 60)
            except subprocess.TimeoutExpired:
                status = f"no end after {minutes} minutes"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        with self.log.open(errors="replace") as log:
            log.seek(start)
            output = log.read()
        seconds = time.monotonic() - started
        if (status == 0) == bool(fails) or (fails and fails not in output):
            print(f"FAILED ({status})", flush=True)
            raise Failed("\n".join(output.splitlines()[-25:]) + f"\nAll: {self.log}")
        print(f"{'refused, as it should be, ' if fails else ''}{seconds:.0f} s",
              flush=True)  # fmt: skip
        return output

    def inside(self, title, minutes, script, fails=None, **variables):
        """Run a script of sh in the system, in the course's folder, as its root."""
        shared = {path: path for path in SHARED if Path(path).exists()}
        shared[str(FOLDER / "cache")] = "/root/.cache"
        for name, place in (("COURSE_DATA", "/data"), ("PEERS", "/peers")):
            if name in variables:
                shared[variables[name]] = place
                variables[name] = place
        (FOLDER / "cache").mkdir(exist_ok=True)
        apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c")
        named = " ".join(f"{a}={b}" for a, b in shared.items())
        words = [f"{name}={value}" for name, value in variables.items()]
        run = ("env", "--chdir=/root/course", "HOME=/root", *words, "sh", "-ec", script)
        return self.step(f"{self.name}: {title}", minutes, *apart, INSIDE, "inside",
                         self.root, named, *run, fails=fails)  # fmt: skip

    def compilers(self):
        """The C++ compilers that the release has, as commands: each g++, one clang."""
        search = "apt-cache search --names-only '^(g[+][+]|clang)-[0-9]+$'"
        found = self.inside("which compilers there are", 5, f"apt-get update; {search}")
        versions = re.findall(r"^(g\+\+|clang)-(\d+) ", found, re.M)
        gcc = sorted(int(number) for name, number in versions if name == "g++")
        clang = max(int(number) for name, number in versions if name == "clang")
        return [*(f"g++-{number}" for number in gcc), f"clang++-{clang}"]


def environment():
    """The caller's, without what would lead a set-up elsewhere astray."""
    kept = {n: v for n, v in os.environ.items() if PASSED_ON.match(n)}
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**kept, "PATH": path, "LC_ALL": "C.UTF-8"}


def systems():
    """Debian 13 and testing: from nothing to lessons, then with each other compiler."""
    data = {"COURSE_PROFILE": "ci"}
    if os.environ.get("COURSE_DATA"):
        data["COURSE_DATA"] = os.path.abspath(os.environ["COURSE_DATA"])
    for name in ("trixie", "testing"):
        system = System(name, "g++")
        version = system.inside("its Python", 1, "python3 --version")
        if int(re.search(r"3\.(\d+)", version).group(1)) > 13:
            system.inside("a Python that is too new", 5, "make setup",
                          fails="has no package for Python 3.14")  # fmt: skip
            get = "apt-get update; apt-get install --yes python3.13 python3.13-venv"
            system.inside("the Python that the message names", 10, get)
        system.inside("set-up with its g++, first sum", 60, "g++ --version; make setup")
        system.inside("the doctor", 10, ".venv/bin/course doctor", **data)
        lessons = ".venv/bin/course notebooks 00 03"
        system.inside("lessons 00 and 03", 30, lessons, **data)
        for compiler in system.compilers():
            package = compiler.replace("clang++", "clang")
            system.inside(f"{compiler}", 15, f"apt-get install --yes {package}")
            # The packages are there; from Horovod on, everything is done again.
            stamp = system.root / "root/course/.venv/.setup/stamp"
            stamp.write_text("\n".join(stamp.read_text().split("\n")[:3]))
            again = f"{compiler} --version; make setup CXX={compiler}"
            system.inside(f"set-up with {compiler}, first sum", 60, again)
        remove(system.root)


def gpu_build():
    """Debian 13 with CUDA 12.4 and a g++ that its nvcc takes: built, loaded, asked."""
    system = System("trixie", "g++ g++-13 nvidia-cuda-toolkit")
    system.inside("set-up for GPUs", 120, "nvcc --version; make setup GPU=1")
    print(system.inside("what was built", 10, ".venv/bin/python tests/gpu_build.py"))
    told = system.inside("the doctor", 10, ".venv/bin/course doctor || true")
    print("\n".join(line for line in told.splitlines() if "GPU" in line))
    peers = os.environ.get("PEERS") or str(PEERS)
    if not Path(peers).is_dir():
        print("Horovod's own Keras suite was not run: make gpu-build PEERS=FOLDER.")
        return
    suite = (
        "cd /peers; export TF_USE_LEGACY_KERAS=1 PYTHONDONTWRITEBYTECODE=1; "
        "/root/course/.venv/bin/mpirun -np 2 --oversubscribe --bind-to none "
        "/root/course/.venv/bin/python -m pytest -p no:randomly -p no:cacheprovider "
        "parallel/test_tensorflow2_keras.py"
    )
    said = system.inside("Horovod's own Keras suite", 30, suite, PEERS=peers)
    print("\n".join(re.findall(r"^=.* passed.*$", said, re.M)))
    remove(system.root)


def headers():
    """The newest g++ of Debian testing reads each of Horovod's headers by itself: what
    a new system's compiler will say of them is found out here first."""
    sys.path.insert(0, str(ROOT / "utils" / "setup"))
    import install

    home = install.Home(ROOT / ".venv")
    with install.claimed(home):
        home.log.write_text("")
        home.scratch.mkdir(exist_ok=True)
        source = install.patched_source(home)
        system = System("testing", "g++")
        shutil.copytree(str(source), str(system.root / "root" / "horovod"))
        install.remove(home.scratch)
    said = system.inside("Horovod's headers", 20, HEADERS)
    print(said.strip().splitlines()[-1])
    remove(system.root)


def remove(folder):
    if folder.exists():
        shutil.rmtree(str(folder))


def main():
    action = {"systems": systems, "gpu-build": gpu_build, "headers": headers}
    if sys.argv[1:] not in [[name] for name in action]:
        sys.exit(__doc__)
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        print(
            f"{sys.argv[1]}: skipped, as it takes root and mmdebstrap (Debian, Ubuntu)."
        )
        return
    FOLDER.mkdir(exist_ok=True)
    try:
        action[sys.argv[1]]()
    except Failed as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
