"""Lays the pages out for the site: ``python docs/layout.py FOLDER``.

Pages link to each other, and to files of the repository, as GitHub shows them. On the site there
are pages only: links to other files become links to the repository. A link that leads nowhere ends
the build. Beside the pages, ``FOLDER/code`` has the package without its links to other folders, for
what reads the docstrings.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/tiercel/tiercel/blob/main"
# Pages that lie beside docs, for GitHub looks for them there.
BESIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^ *```")


def pages() -> dict[str, str]:
    """Return the place of each page in the repository, and on the site."""
    found = {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
        for path in sorted((ROOT / "docs").rglob("*.md"))
    }
    # The first page of a folder.
    indexes = {place: re.sub(r"README\.md$", "index.md", page) for place, page in found.items()}
    return indexes | BESIDE


def on_the_site(target: str, place: str, known: dict[str, str]) -> str:
    """Return the target of a link of the page at ``place``, as it is on the site."""
    if re.match(r"[a-z]+:", target) or target.startswith("#"):
        return target
    path, hash_, anchor = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
    if not (ROOT / file).exists():
        raise SystemExit(f"{place}: a link leads nowhere: {target}")
    if file in known:
        return posixpath.relpath(known[file], posixpath.dirname(known[place])) + hash_ + anchor
    if file.startswith("docs/images/"):
        images = file.removeprefix("docs/")
        return posixpath.relpath(images, posixpath.dirname(known[place]) or ".")
    return f"{REPOSITORY}/{file}{hash_}{anchor}"


def laid_out(text: str, place: str, known: dict[str, str]) -> str:
    """Return a page with the links of the site. Code is left as it is."""
    lines, code = [], False
    for line in text.splitlines(keepends=True):
        code ^= bool(_FENCE.match(line))
        lines.append(
            line
            if code or line.startswith("    ")
            else _LINK.sub(
                lambda found: found[1] + on_the_site(found[2], place, known) + found[3], line
            )
        )
    return "".join(lines)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    known = pages()
    for place, page in known.items():
        target = folder / "pages" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(laid_out((ROOT / place).read_text("utf-8"), place, known), "utf-8")
    shutil.copytree(ROOT / "docs/images", folder / "pages/images")
    shutil.copy(ROOT / "docs/zensical.toml", folder)
    shutil.copytree(
        ROOT / "tiercel", folder / "code/tiercel", ignore=shutil.ignore_patterns("__pycache__")
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
