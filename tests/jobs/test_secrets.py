"""A key in `storageOptions` is in nothing that a job prints, writes or keeps."""

from __future__ import annotations

import json
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rmq_store.errors import InvalidArgumentError
from rmq_store.files.journal import refuse_uri
from rmq_store.scan.parse_options import Secret, hide_secrets, parse_options, reveal
from rmqstore_jobs.export import ExportSpec, run
from rmqstore_jobs.running.job_command import Job
from tests.support.golden import Golden
from tests.support.running.engines import ON_BOTH

NAME = "clean-5.5.0"
KEY = "a-planted-key"
GIVEN = {"storageOptions": json.dumps({"secret_key": KEY, "region": "eu-central-1"})}
# The words after STORE of each job, and the fields of its spec.
JOBS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "dlq": ([], {}),
    "export": (["--to", "TARGET"], {"target": "TARGET"}),
}


def kept_in(folder: Path) -> str:
    """All that lies in a folder: names, bytes, and what Parquet holds."""
    found = []
    for path in sorted(folder.rglob("*")):
        found.append(str(path))
        if path.suffix == ".parquet":
            found += [str(pq.ParquetFile(path).read().to_pylist()), str(pq.read_schema(path))]
        if path.is_file():
            found.append(path.read_bytes().decode("latin-1"))
    return "\n".join(found)


@ON_BOTH
@pytest.mark.parametrize("name", JOBS)
def test_no_output_of_a_job_has_the_key(
    name: str,
    engine: SparkSession | None,
    golden: Golden,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = import_module(f"rmqstore_jobs.{name}")
    kind = next(v for k, v in vars(module).items() if k.endswith("Spec") and k != "ReplaySpec")
    fields = {k: str(tmp_path / "target") if v == "TARGET" else v for k, v in JOBS[name][1].items()}
    spec = kind(golden(NAME).path, **{**fields, "options": GIVEN})
    answer = module.run(engine, spec)
    print(spec, answer.to_json(), answer)
    answer.show()
    answer.save(str(tmp_path / "report.json"))
    assert reveal(spec.options["storageOptions"]) == GIVEN["storageOptions"]
    said = capfd.readouterr()
    assert "storageOptions" in said.out  # the option itself is no secret
    assert KEY not in said.out + said.err + caplog.text + kept_in(tmp_path)


@pytest.mark.parametrize("name", JOBS)
def test_no_output_of_a_command_has_the_key(
    name: str, golden: Golden, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main: Job = import_module(f"rmqstore_jobs.{name}").main
    options = {word for p in main.params for word in p.opts}
    words = [str(tmp_path / "target") if word == "TARGET" else word for word in JOBS[name][0]]
    given = ["--storage-options", GIVEN["storageOptions"]] if "--storage-options" in options else []
    report = ["--report", str(tmp_path / "report.json")]
    for asked in (given, ["--storage-options", f"not JSON: {KEY}"] if given else []):
        main([golden(NAME).path, *words, *asked, *report])
        said = capfd.readouterr()
        assert KEY not in said.out + said.err + kept_in(tmp_path)


def test_a_key_decides_nothing_about_a_target(golden: Golden, tmp_path: Path) -> None:
    """Keys change; the export goes on. A manifest that has one from before is not quoted."""
    spec = ExportSpec(golden(NAME).path, str(tmp_path / "target"), {**GIVEN, "topic": "orders"})
    assert run(None, spec).ok
    for path in (tmp_path / "target" / "_manifest").iterdir():
        content = json.loads(path.read_text())
        (content["done"][0] if "done" in content else content)["asked"].update(GIVEN)
        path.write_text(json.dumps(content))
    assert run(None, ExportSpec(spec.store, spec.target, {"topic": "orders"})).ok
    other = ExportSpec(spec.store, spec.target, {**GIVEN, "topic": "orders", "mode": "PERMISSIVE"})
    with pytest.raises(Exception, match="exported with other options") as refused:
        run(None, other)
    assert KEY not in str(refused.value)


def test_the_target_of_a_job_is_not_quoted() -> None:
    with pytest.raises(InvalidArgumentError, match="s3:") as refused:
        refuse_uri(f"s3://somebody:{KEY}@bucket/target")
    assert KEY not in str(refused.value)


def test_a_secret_is_three_characters_to_everybody_else() -> None:
    secret = Secret(KEY)
    for text in (secret, f"{secret}", repr(secret), "%s" % secret, secret + "", secret[:]):  # noqa: UP031
        assert KEY not in text
    assert json.dumps({"a": secret}) == '{"a": "***"}'
    assert reveal(pickle.loads(pickle.dumps(secret))) == KEY
    assert reveal(Secret(secret)) == KEY
    hidden = hide_secrets({"STORAGEOPTIONS": GIVEN["storageOptions"], "topic": "orders"})
    assert hidden == {"STORAGEOPTIONS": "***", "topic": "orders"}
    asked = parse_options({"path": "store", **hidden})
    assert asked.storage_options is not None
    assert asked.storage_options["secret_key"] == KEY
    assert KEY not in repr(asked)
