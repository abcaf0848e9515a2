"""The tutorial and the coverage page: figures are those of their data, links and named tests exist."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial"


class Tutorial(unittest.TestCase):
    def test_figures_are_those_of_their_data(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, TUTORIAL / "draw.py", folder], check=True)
            drawn = sorted(pathlib.Path(folder).glob("*.svg"))
            self.assertEqual(sorted(f.name for f in TUTORIAL.glob("*.svg")), [f.name for f in drawn])
            for file in drawn:
                self.assertEqual(file.read_bytes(), (TUTORIAL / file.name).read_bytes(), file.name)

    def test_chapters_come_in_both_languages(self):
        chapters = sorted(f.name for f in (TUTORIAL / "en").iterdir())
        self.assertEqual(4, len(chapters))
        self.assertEqual(chapters, sorted(f.name for f in (TUTORIAL / "zh").iterdir()))

    def test_links_lead_somewhere(self):
        for page in [*TUTORIAL.rglob("*.md"), *DOCS.glob("*.md")]:
            for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
                if "//" not in link:
                    self.assertTrue((page.parent / link).exists(), f"{page}: {link}")

    def test_tests_that_the_coverage_page_names_exist(self):
        page = DOCS / "coverage.md"
        if not page.exists():
            self.skipTest("no such page")
        text = page.read_text(encoding="utf-8")
        files = set(re.findall(r"`((?:unit|e2e|tools|cpu_torch|gpu|sim)/[\w./]+)`", text))
        self.assertGreater(len(files), 20)
        for file in files:  # tools/ are programs or tests
            self.assertTrue((ROOT / "tests" / file).exists() or (ROOT / file).exists(), file)
        # Names of tests within them.
        sources = "".join((ROOT / "tests" / f).read_text(encoding="utf-8") for f in files
                          if (ROOT / "tests" / f).is_file())
        for name in re.findall(r"`((?:test_)?[A-Za-z]\w{9,})`\)", text):
            self.assertTrue(name in sources, name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
