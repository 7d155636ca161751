"""A browser for the tests that look at pages: Chromium or Chrome, without a window."""

import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDS_BROWSER = "no Chromium or Chrome on this machine"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]


def look(page: Path, width: int, *flags: str) -> str:
    """The page as it is once it has been loaded, of which nothing on the browser's console complains."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [str(CHROMIUM), *FLAGS, *flags, f"--user-data-dir={profile}", f"--window-size={width},2000"]
        command += ["--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri()]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in result.stderr, result.stderr
    return result.stdout
