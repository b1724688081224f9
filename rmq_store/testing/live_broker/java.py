"""The JDK of this machine, and the jars of RocketMQ releases in a cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE_VARIABLE = "RMQSTORE_TEST_CACHE"

# RocketMQ unmaps its files with JDK internals; without these the JVM refuses from JDK 16 on.
JVM_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)


MAVEN_ATTEMPTS = 3  # a repository that does not answer once is no reason to fail


class HarnessUnavailable(RuntimeError):
    """This machine cannot run a real broker; the message says what is missing."""


class CommandFailed(RuntimeError):
    """A program ended with an error; the message carries the end of its output."""


def jdk_tool(name: str) -> str:
    """Path of `java` or `javac`: from JAVA_HOME, else from PATH."""
    home = os.environ.get("JAVA_HOME")
    tool = shutil.which(name, path=str(Path(home, "bin"))) if home else None
    tool = tool or shutil.which(name)
    if tool is None:
        raise HarnessUnavailable(f"{name} is not on PATH; a real broker needs a JDK")
    return tool


def cache_folder() -> Path:
    """Where jars and classes are kept between runs."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache/rmqstore-tests")


def jars(release: str, *, proxy: bool = False) -> Path:
    """Folder with all jars of a release; Maven fetches them if they are not in the cache."""

    def fetch(folder: Path) -> None:
        options = [f"-Drocketmq.version={release}", f"-DoutputDirectory={folder}"]
        if proxy:
            options.append("-Pproxy")
        _maven("dependency:copy-dependencies", "-DincludeScope=runtime", *options)

    jdk_tool("java")
    jdk_tool("javac")
    name = f"{release}-proxy" if proxy else release
    return _cached(cache_folder() / name / "lib", fetch)


def class_path(source: Path, release: str, *, proxy: bool = False) -> str:
    """What `java -cp` needs to run one source file with a release; compiled if it has changed."""
    lib = jars(release, proxy=proxy)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]

    def compile_into(folder: Path) -> None:
        folder.mkdir()
        options = ["-nowarn", "-encoding", "UTF-8", "-cp", f"{lib}/*", "-d", str(folder)]
        run([jdk_tool("javac"), *options, str(source)])

    classes = _cached(lib.parent / f"{source.stem}-{digest}", compile_into)
    return f"{classes}:{lib}/*"


def run(command: Sequence[str], *, text: str = "") -> str:
    """Run a program with `text` as its input; its standard output."""
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        output = (done.stdout[-1000:] + done.stderr[-3000:]).strip()
        raise CommandFailed(f"{Path(command[0]).name} ended with {done.returncode}:\n{output}")
    return done.stdout


def _maven(*arguments: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise HarnessUnavailable("mvn is not on PATH, and the jars are not in the cache")
    for attempt in range(MAVEN_ATTEMPTS):
        try:
            run([maven, "-q", "-B", "-f", str(HERE / "pom.xml"), *arguments])
            return
        except CommandFailed:
            if attempt == MAVEN_ATTEMPTS - 1:
                raise


def _cached(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by `make(folder)` unless it exists. Others who want it meanwhile wait."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            # Made under another name: a folder with the right name is always whole.
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as scratch:
                unfinished = Path(scratch, folder.name)
                make(unfinished)
                unfinished.rename(folder)
    return folder
