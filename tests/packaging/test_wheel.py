"""What `pip install` of the wheel brings, in an environment of its own that nobody activated."""

from __future__ import annotations

import ast
import os
import re
import site
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path

import pytest

import hatch_build
from rmq_store.testing.live_broker.needs import missing_here
from tests.support.checkout import CHECKOUT
from tests.support.golden import Golden

READ = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("rmqstore").load(sys.argv[1])
print("topics:", sorted(row.topic for row in frame.select("topic").distinct().collect()))
"""


pytestmark = pytest.mark.campaign  # it compiles the loops, and installs an environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*build, "--no-deps", "-w", str(folder), str(CHECKOUT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and what it depends on, and nothing else.

    The dependencies are those of this environment; a plain path in a .pth file shows them and not
    the editable install beside them.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    interpreter = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter)]
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *quiet, "--no-deps", str(wheel)], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return interpreter


@pytest.fixture(scope="module")
def plain_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a machine builds whose C compiler does not work."""
    folder = tmp_path_factory.mktemp("plain")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    kept = {name: text for name, text in os.environ.items() if name != "RMQSTORE_COMPILED"}
    subprocess.run(
        [*build, "--no-deps", "-w", str(folder), str(CHECKOUT)],
        check=True,
        env={**kept, "CC": "/bin/false"},
    )
    (built,) = folder.glob("*.whl")
    return built


def loop_files(wheel: Path) -> set[str]:
    found = {name.rpartition("/")[2] for name in members(wheel) if "/loops/" in name}
    return {name for name in found if not name.endswith(".py")}


def members(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_it_installs_four_names_and_no_common_one(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in members(wheel)}
    assert {name for name in tops if not name.endswith(".dist-info")} == {
        "rmq_store",
        "spark_source",
        "rmqstore_jobs",
        "pyspark_rmqstore.py",
    }


def test_it_has_the_templates_of_pages(wheel: Path) -> None:
    templates = {str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("rmq_store/*/*.html")}
    assert len(templates) == 3
    assert templates <= set(members(wheel))


def test_it_is_typed(wheel: Path) -> None:
    typed = {f"{name}/py.typed" for name in ("rmq_store", "spark_source", "rmqstore_jobs")}
    assert typed <= set(members(wheel))


def test_it_depends_on_what_it_imports(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
        sources = [archive.read(name).decode() for name in names if name.endswith(".py")]
    needed = {name for source in sources for name in imported_names(source)}
    own = {"rmq_store", "spark_source", "rmqstore_jobs", "pyspark_rmqstore"}
    declared: dict[bool, set[str]] = {True: set(), False: set()}
    for requirement in headers.get_all("Requires-Dist", []):
        declared["extra ==" in requirement].add(re.split(r"[^\w-]", requirement)[0])
    known_as = {
        "rocketmq": "rocketmq-python-client",
        "delta": "delta-spark",
        "py4j": "pyspark",
        "zlib_ng": "zlib-ng",
        "grpc": "grpcio",
    }
    used = {known_as.get(name, name) for name in needed - own - sys.stdlib_module_names}
    assert declared[False] <= used <= declared[False] | declared[True]


def imported_names(source: str) -> set[str]:
    """What a module imports; not what it does for its types alone."""
    found: set[str] = set()
    tree = ast.parse(source)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_it_has_the_loops_compiled_and_a_platform(wheel: Path) -> None:
    files = loop_files(wheel)
    if not files and not os.environ.get("RMQSTORE_COMPILED"):
        missing_here("no C compiler works here")
    names = {hatch_build.SHARED, *hatch_build.loop_names()}
    assert {name.partition(".")[0] for name in files} == names
    assert all(name.endswith(".so") for name in files), "no sources in C"
    assert len(files) == len(names), "nothing that was compiled in place"
    assert "-none-any" not in wheel.name
    assert ("-cp311-abi3-" in wheel.name) == hatch_build.IS_LIMITED


def test_without_a_compiler_it_is_plain_python(plain_wheel: Path) -> None:
    assert plain_wheel.name.endswith("-py3-none-any.whl")
    assert not loop_files(plain_wheel), "what was compiled in place is of this machine"


def test_the_core_needs_no_spark(python: Path, golden: Golden) -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from rmq_store import MessageStore\n"
        "with MessageStore.open(sys.argv[1]) as store: print(store.topics(include_system=False))"
    )
    done = run(python, script, golden("clean-5.5.0").path, {})
    assert "orders" in done.stdout, done.stderr


def test_an_environment_that_is_not_activated_reads_with_pyspark_python_set(
    python: Path, golden: Golden
) -> None:
    done = run(python, READ, golden("clean-5.5.0").path, {"PYSPARK_PYTHON": str(python)})
    assert done.returncode == 0, done.stderr
    assert "'orders'" in done.stdout


def test_without_it_spark_asks_the_first_python3_of_the_path(
    python: Path, golden: Golden, tmp_path: Path
) -> None:
    """The README says what to set because of this; where this fails, the README can be shorter."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    done = run(
        python, READ, golden("clean-5.5.0").path, {"PATH": f"{bare}/bin:{os.environ['PATH']}"}
    )
    assert done.returncode != 0
    assert "DATA_SOURCE_NOT_FOUND" in done.stderr or "No module named" in done.stderr


def run(
    python: Path, script: str, store: str, extra: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `script` outside of the checkout, in an environment that points nowhere near it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "PYTHON", "VIRTUAL_ENV", "SPARK_HOME"))
    }
    return subprocess.run(
        [str(python), "-c", script, store],
        capture_output=True,
        text=True,
        check=False,
        cwd=python.parent,
        env={**kept, "SPARK_LOCAL_IP": "127.0.0.1", **extra},
    )
