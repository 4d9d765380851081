"""``python licences.py FOLDER``: write what is installed here, and under which licence.

FOLDER/licences.tsv is a table for people, FOLDER/sbom.cdx.json a CycloneDX 1.5 SBOM for machines.
Python packages say their licence in their metadata; Debian packages in /usr/share/doc. Only the
standard library is needed, and the file is run inside the image while it is built.
"""

import csv
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import quote

UNKNOWN = "see package"


@dataclass(frozen=True, order=True)
class Package:
    """One installed package; `kind` is "pypi", "deb/debian" or "deb/ubuntu"."""

    kind: str
    name: str
    version: str
    licence: str
    url: str

    @property
    def purl(self) -> str:
        """Package URL, https://github.com/package-url/purl-spec."""
        return f"pkg:{self.kind}/{quote(self.name)}@{quote(self.version)}"


def python_licence(distribution: Distribution) -> str:
    """Licence of a Python package: the SPDX expression, else classifiers, else the first line."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    stated = [
        entry.rsplit(" :: ", 1)[1]
        for entry in metadata.get_all("Classifier") or []
        if entry.startswith("License :: ") and not entry.endswith(" :: OSI Approved")
    ]
    if stated:
        return " AND ".join(sorted(stated))
    text = (metadata.get("License") or "").strip()
    # Some packages put the whole text of their licence here.
    return text.splitlines()[0][:80] if text and text != "UNKNOWN" else UNKNOWN


def python_packages() -> list[Package]:
    """Every Python package on the path of this interpreter."""
    found = []
    for distribution in distributions():
        metadata = distribution.metadata
        links = [entry.split(", ", 1)[1] for entry in metadata.get_all("Project-URL") or []]
        url = metadata.get("Home-page") or next(iter(links), "")
        name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
        licence = python_licence(distribution)
        found.append(Package("pypi", name, distribution.version, licence, url))
    return found


def debian_licence(name: str, documents: Path = Path("/usr/share/doc")) -> str:
    """Licences named by the machine-readable copyright file of a Debian package."""
    try:
        text = (documents / name / "copyright").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return UNKNOWN
    names = re.findall(r"^License: *(\S.*)$", text, re.MULTILINE)
    return " AND ".join(sorted({entry.strip() for entry in names})) or UNKNOWN


def debian_kind(release: Path = Path("/etc/os-release")) -> str:
    """Whose packages dpkg has here: NVIDIA's images are Ubuntu, the stand-in is Debian."""
    match = re.search(r'^ID="?(\w+)"?$', release.read_text(encoding="utf-8"), re.MULTILINE)
    return f"deb/{match[1] if match else 'debian'}"


def debian_packages() -> list[Package]:
    """Every Debian package that is installed; none where there is no dpkg."""
    layout = "${Package}\t${Version}\t${Homepage}\n"
    try:
        listing = subprocess.run(
            ["dpkg-query", "--show", f"--showformat={layout}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    except FileNotFoundError:
        return []
    kind = debian_kind()
    rows = [line.split("\t") for line in listing.splitlines()]
    return [Package(kind, name, version, debian_licence(name), url) for name, version, url in rows]


def write_table(path: Path, packages: list[Package]) -> None:
    """Write the table for people."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, dialect="excel-tab", lineterminator="\n")
        writer.writerow(["kind", "name", "version", "licence", "url"])
        for package in packages:
            row = (package.kind, package.name, package.version, package.licence, package.url)
            writer.writerow([" ".join(cell.split()) for cell in row])


def write_sbom(path: Path, packages: list[Package]) -> None:
    """Write the CycloneDX SBOM."""
    components = [
        {
            "type": "library",
            "name": package.name,
            "version": package.version,
            "purl": package.purl,
            "bom-ref": package.purl,
            "licenses": [{"license": {"name": package.licence}}],
        }
        for package in packages
    ]
    content = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1}
    text = json.dumps(content | {"components": components}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Write both files; return the exit code."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python licences.py FOLDER\n")
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    packages = sorted(set(python_packages() + debian_packages()))
    write_table(folder / "licences.tsv", packages)
    write_sbom(folder / "sbom.cdx.json", packages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
