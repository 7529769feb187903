"""Pages have names that the package may mention, links that lead somewhere, and a command that shows them."""

import os
import re
import runpy
import sys
import tomllib
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

import actorflow as af
from actorflow import errors
from actorflow.cli import main
from actorflow.cli.docs import ROOMS, pages
from actorflow.cli.doctor import Check
from tests.support.pages import PAGES, ROOT

PACKAGE = Path(af.__file__).parent
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as code hosts and the site make them."""
    headings = HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.together("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for found in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = found["target"].partition("#")
        if "://" in path:
            continue
        target = Path(os.path.normpath(page.parent / path)) if path else page
        assert target.exists(), found["target"]
        assert not anchor or anchor in anchors(target), found["target"]


def test_names_are_unique_and_every_page_has_a_title() -> None:
    stems = Counter(path.stem for room in ROOMS for path in ROOT.joinpath("docs", room).glob("*.md"))
    assert set(stems.values()) == {1}
    assert set(pages()) == set(stems)
    for page in pages().values():
        assert page.title != page.name


def test_the_newest_section_of_the_changes_is_the_version() -> None:
    text = ROOT.joinpath("CHANGELOG.md").read_text(encoding="utf-8")
    first, *_ = re.findall(r"^## (\S+)$", text, re.MULTILINE)
    assert first == af.__version__
    assert text.count("### Upgrade notes") == len(re.findall(r"^## ", text, re.MULTILINE))


def test_the_wheel_carries_them() -> None:
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))
    carried = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert carried == {f"docs/{each}": f"actorflow/docs/{each}" for each in ("index.md", *ROOMS)}


def test_an_installed_package_shows_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "start").mkdir(parents=True)
    for name in ("a-later-one", "here", "in-no-list"):
        (tmp_path / "docs" / "start" / f"{name}.md").write_text(f"# {name.title()}\n", encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text("start/here\nstart/a-later-one\n", encoding="utf-8")
    monkeypatch.setattr("actorflow.cli.docs.PACKAGE", tmp_path)
    assert [page.name for page in pages().values()] == ["here", "a-later-one", "in-no-list"]
    assert pages()["here"].title == "Here"


def test_the_path_is_listed_step_by_step() -> None:
    path = [page for page in pages().values() if page.room == "start"]
    assert path[0].name == "start"
    for page, following in pairwise(path):
        assert re.search(rf"Next:[^\[]*\[[^]]*\]\({following.name}\)", page.text), page.name


def test_the_package_mentions_pages_that_there_are() -> None:
    mentioned = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"(?:actorflow docs |page=\")([a-z][a-z-]*)", path.read_text(encoding="utf-8"))
    }
    mentioned -= {"lists"}  # "actorflow docs lists them"
    kinds = [vars(errors)[name] for name in errors.__all__ if name.endswith("Error")]
    mentioned |= {kind.page for kind in kinds if kind.page}
    assert mentioned <= set(pages())
    assert {"nan", "shapes", "slow", "stalls", "install", "mpi"} <= mentioned


def test_an_error_ends_with_its_page() -> None:
    graph = af.Graph("g")
    with pytest.raises(af.ShapeError) as caught:
        graph.blob("x", (2, 3)) + graph.blob("y", (4, 5))
    assert caught.value.__notes__ == ["More: actorflow docs shapes"]
    assert "actorflow docs" not in str(caught.value)


def test_a_damaged_file_leads_to_the_page_of_its_kind(tmp_path: Path) -> None:
    for name, load, page in [
        ("graph.af", af.load_sync, "files"),
        ("net.safetensors", partial(af.load_checkpoint_sync, af.Graph("g")), "training"),
    ]:
        path = tmp_path / name
        path.write_bytes(b"cut off")
        with pytest.raises(af.CheckpointError) as caught:
            load(path)
        assert caught.value.__notes__ == [f"More: actorflow docs {page}"]


class TestCommand:
    def test_without_a_name_all_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["docs"]) == 0
        listed = capsys.readouterr().out
        for page in pages().values():
            assert re.search(rf"^  {page.name} +{re.escape(page.title)}$", listed, re.MULTILINE)

    def test_a_page(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["docs", "nan"]) == 0
        assert capsys.readouterr().out.startswith("# NaN and infinities\n")

    def test_what_only_the_site_makes_something_of_is_left_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["docs", "start"]) == 0
        shown = capsys.readouterr().out
        assert "<!--" not in shown
        assert "![" not in shown
        assert "[watching](watching)" in shown  # the name of its page
        assert main(["docs", "operation-table"]) == 0
        assert "{operations}" not in capsys.readouterr().out

    def test_an_unknown_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["docs", "pipeline"]) == 1
        assert "no page 'pipeline', actorflow docs lists them; did you mean" in (said := capsys.readouterr().err)
        assert "'pipelines'" in said

    def test_words_are_looked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["docs", "--search", "hang up"]) == 0
        shown = capsys.readouterr().out.lower()
        assert "running: running a graph\n    ### a client that hangs up" in shown
        assert main(["docs", "--search", "no-such-word"]) == 1
        assert "no page has all of these words: 'no-such-word'" in capsys.readouterr().err

    def test_a_path_as_links_have_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["docs", "how-to/nan.md"]) == 0
        assert capsys.readouterr().out.startswith("# NaN and infinities\n")

    def test_at_a_terminal_it_is_rendered(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("pydoc.pager", lambda text: print(text))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert main(["docs", "nan"]) == 0
        shown = capsys.readouterr().out
        assert "NaN and infinities" in shown
        assert "# NaN" not in shown

    def test_help_and_doctor_name_it(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr("actorflow.cli.doctor.examine", lambda: [Check("cores", "ok", "2")])  # it imports libraries
        assert main(["--help"]) == 0
        assert "actorflow docs start" in " ".join(capsys.readouterr().out.split())
        assert main(["doctor"]) == 0
        assert "actorflow docs install" in capsys.readouterr().out


class TestSiteCheck:
    """What `make docs` holds a built site to."""

    def problems(self, folder: Path, page: str, style: str = "") -> list[str]:
        (folder / "page.html").write_text(page, encoding="utf-8")
        (folder / "style.css").write_text(style, encoding="utf-8")
        found: list[str] = runpy.run_path(str(ROOT / "tools" / "check-site"))["problems"](folder)
        return found

    @pytest.mark.parametrize(
        "page",
        [
            '<h1 id="top">x</h1><a href="#top">x</a><a href="https://example.org">x</a>',
            '<link rel="stylesheet" href="style.css"><a href="page.html?q=1">x</a><img src="data:image/png;base64,">',
        ],
    )
    def test_a_good_page(self, page: str, tmp_path: Path) -> None:
        assert self.problems(tmp_path, page) == []

    @pytest.mark.together(
        ("page", "style", "said"),
        [
            ('<a href="#gone">x</a>', "", "page.html: #gone: there is no such anchor"),
            ('<a href="gone.html">x</a>', "", "page.html: gone.html: there is no such file"),
            ('<script src="https://a.b/x.js"></script>', "", "page.html: loads https://a.b/x.js"),
            ('<link rel="stylesheet" href="//a.b/x.css">', "", "page.html: loads //a.b/x.css"),
            ("", "@import 'https://a.b/x.css';", "style.css: loads something from elsewhere"),
            ("", "a { background: url(//a.b/x.png) }", "style.css: loads something from elsewhere"),
        ],
    )
    def test_a_bad_page(self, page: str, style: str, said: str, tmp_path: Path) -> None:
        assert self.problems(tmp_path, page, style) == [said]
