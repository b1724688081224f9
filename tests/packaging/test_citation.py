"""CITATION.cff says of the package what the package says of itself."""

from __future__ import annotations

from importlib.metadata import metadata

from tests.support.checkout import CHECKOUT


def test_name_version_and_licence_are_those_of_the_package() -> None:
    lines = (CHECKOUT / "CITATION.cff").read_text("utf-8").splitlines()
    cited = dict(line.strip(" -").split(": ", 1) for line in lines if ": " in line)
    package = metadata("rmqstore")
    assert cited["title"] == package["Name"]
    assert cited["version"] == package["Version"]
    assert cited["license"] == package["License-Expression"]
    assert cited["abstract"] == f"{package['Summary']}."
    assert sorted(cited["keywords"].strip("[]").split(", ")) == package["Keywords"].split(",")
