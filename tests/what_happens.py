"""``make what-happens``: run every case of the tests' tables and write what came of it.

The page docs/what_happens_when.md has a row per case: what is wrong, the exit code, the sentence
that is printed, and what is left in the output folder. The cases are those of the tests, which
check the same; this only writes them down. Names of cases as arguments run these and new ones
alone, and keep the other rows.
"""

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cli import test_group_plan, test_parser, test_participant_plan
from conftest import make_tiny_dataset
from integration import broken
from integration.daily import DAILY
from integration.faults import FAULTS, Fault, left_on_disk, make_place
from learn.conftest import Study, make_people

from bids_gevnet.cli.run import main

PAGE = Path(__file__).parents[1] / "docs" / "what_happens_when.md"
HEAD = """\
# What happens when

For whoever writes scripts around the app, or wonders what a broken dataset does. Every case below
runs through the command line in the tests. Exit codes: 0 done, 1 something is left undone, such
as a participant that cannot be processed or a run that a full disk stopped, and the rest is done,
2 the input or the command cannot be used at all, 70 stopped by something unforeseen or for want of
memory, 130 stopped by Ctrl-C, 143 stopped by SIGTERM. There is never a traceback on the terminal;
where one helps, it is kept in a file that the sentence names.

`make what-happens` runs all cases again and writes this page.
"""
COLUMNS = ("| case | exit code | sentence | left in OUTPUT_DIR |", "| --- | --- | --- | --- |")


class Outcome(NamedTuple):
    """How a case ended."""

    code: int
    sentence: str
    left: str


class Case(NamedTuple):
    """A row of the page: under which heading, what is wrong, and how to find out."""

    section: str
    name: str
    run: Callable[[Path], Outcome]


def printed_by(*arguments: str) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse's own way out
            code = int(stop.code or 0)
    return code, said.getvalue()


def find_sentences(said: str, fragments: Sequence[str]) -> str:
    """Keep the lines that the tests look at."""
    lines = [line.strip() for line in said.splitlines()]
    chosen = [line for line in lines if any(text in line for text in fragments)]
    return " ".join(dict.fromkeys(chosen)) or "(nothing to say)"


def nothing(_: object) -> None:
    """Leave the dataset as it is."""


def dry_run(
    damage: Callable[..., object], fragments: Sequence[str], *options: str
) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        dataset = make_tiny_dataset(folder / "data")
        damage(dataset)
        data, out, *further = test_participant_plan.fill(options, folder)
        usual = ("participant", "--skip-bids-validation", "--dry-run")
        code, said = printed_by(data, out, *usual, *further)
        left = "something" if (folder / "out").exists() else "nothing"
        return Outcome(code, find_sentences(said, fragments), left)

    return run


def group_dry_run(
    damage: Callable[[Path], object], options: Sequence[str], fragment: str
) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        Study(folder, make_people(4, ("AD", "PD"), ("A", "B")), effect=0.8, seed=0)
        damage(folder)
        before = sorted(folder.rglob("*"))
        filled = [option.format(root=folder) for option in options]
        code, said = printed_by(
            *(str(folder / "raw"), str(folder / "derivatives"), "group", "--dry-run"),
            *("--folds", "2", *filled),
        )
        same = sorted(folder.rglob("*")) == before
        return Outcome(code, find_sentences(said, [fragment]), "as before" if same else "changed")

    return run


def fault_run(fault: Fault) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        place = make_place(folder)
        ended = fault.run(place)
        return Outcome(
            ended.code,
            find_sentences(ended.said, fault.sentence),
            left_on_disk(place, fault.level),
        )

    return run


def mistyped(words: str, fragment: str) -> Callable[[Path], Outcome]:
    def run(folder: Path) -> Outcome:
        code, said = printed_by(f"{folder}/data", f"{folder}/out", *words.split())
        return Outcome(code, find_sentences(said, [fragment]), "nothing")

    return run


def spelling_cases() -> Iterator[Case]:
    section = "Both levels: slips and spellings"
    for name, (words, fragment) in test_parser.MISTYPED.items():
        yield Case(section, name, mistyped(words, fragment))
    for words, (setting, _) in test_parser.SPELLINGS.items():
        yield Case(section, words, dry_run(nothing, [f"{setting} = "], *words.split()))
    yield Case(section, "--notrack", dry_run(nothing, [], "--notrack"))
    words, sentence = "--participant_label sub-01", "1 of 1 participants"
    yield Case(section, words, dry_run(nothing, [sentence], *words.split()))


def input_cases() -> Iterator[Case]:
    section = "Participant level: one of two participants cannot be processed"
    for name, (damage, fragments) in broken.REFUSED.items():
        yield Case(section, name, dry_run(damage, fragments))
    section = "Participant level: a third folder beside two participants"
    for name, (damage, fragments) in broken.MISLABELLED.items():
        yield Case(section, name, dry_run(damage, [*fragments, "a label of letters"]))
    section = "Participant level: unusual, and processed all the same"
    for name, (damage, fragments) in broken.ACCEPTED.items():
        yield Case(section, name, dry_run(damage, fragments))
    section = "Participant level: the command cannot be carried out"
    name, sentence = "--shell 3000 where b is 1000", "a shell near b = 3000"
    yield Case(section, name, dry_run(nothing, [sentence], "--shell", "3000"))
    for name, (options, fragment) in test_participant_plan.REFUSED.items():
        yield Case(section, name, dry_run(nothing, [fragment], *options))


def study_cases() -> Iterator[Case]:
    section = "Group level: a study goes on with those who are there"
    for name, (spoil, options, _, fragment) in test_group_plan.LEFT_OUT.items():
        yield Case(section, name, group_dry_run(spoil, options, fragment))
    section = "Group level: a rule of the evaluation would break"
    for name, (spoil, options, fragment) in test_group_plan.REFUSED.items():
        yield Case(section, name, group_dry_run(spoil, options, fragment))


def fault_cases() -> Iterator[Case]:
    for level in ("participant", "group"):
        for kind, faults in (("faults of the machine", FAULTS), ("days in a lab", DAILY)):
            for name, fault in faults.items():
                if fault.level == level:
                    yield Case(f"{level.title()} level: {kind}", name, fault_run(fault))


def all_cases() -> Iterator[Case]:
    """List every case, in the order of the page."""
    yield from spelling_cases()
    yield from input_cases()
    yield from study_cases()
    yield from fault_cases()


def cell(text: str, folder: Path) -> str:
    """Shorten paths and escape what Markdown would take for its own."""
    for path, short in (
        (folder / "data", "BIDS_DIR"), (folder / "study/raw", "BIDS_DIR"),
        (folder / "raw", "BIDS_DIR"), (folder / "out", "OUTPUT_DIR"),
        (folder / "study/derivatives", "OUTPUT_DIR"), (folder / "derivatives", "OUTPUT_DIR"),
        (folder / "work", "WORK_DIR"), (folder, "..."), (Path.cwd(), "..."),
    ):  # fmt: skip
        text = text.replace(str(path), short)
    text = re.sub(r"\S*/site-packages/", ".../", text)
    text = re.sub(rf"(?:{tempfile.gettempdir()}/)?(crash|error)-[\w.-]+\.txt", r"\1-....txt", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d [\d:,]+ ", "", text)
    return re.sub(r"([|<>*_`\\\[\]])", r"\\\1", text)


def listed_rows(page: str) -> dict[tuple[str, str], str]:
    """Read the rows back from the page, each by the section and the name of its case."""
    rows, section = {}, ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| case", "| ---")):
            rows[section, re.sub(r"\\(.)", r"\1", line.split(" | ")[0][2:])] = line
    return rows


def write_row(case: Case) -> str:
    """Run a case and write its row of the table."""
    with tempfile.TemporaryDirectory() as name:
        code, sentence, left = case.run(Path(name))
        cells = (cell(case.name, Path(name)), str(code), cell(sentence, Path(name)), left)
    sys.stderr.write(f"{code:3d}  {case.name}\n")
    return f"| {' | '.join(cells)} |"


def write_page(only: Sequence[str] = ()) -> None:
    """Run all cases, or these and new ones, and write the page."""
    known = listed_rows(PAGE.read_text(encoding="utf-8")) if only else {}
    lines, section = [HEAD], ""
    for case in all_cases():
        if case.section != section:
            section = case.section
            lines += [
                "",
                f"## {section}",
                "",
                "| case | exit code | sentence | left in OUTPUT_DIR |",
            ]
            lines += ["| --- | --- | --- | --- |"]
        row = known.get((case.section, case.name)) if case.name not in only else None
        lines.append(row or write_row(case))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines).replace("\n\n\n", "\n\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_page(sys.argv[1:])
