"""Tries a wheel, in an environment where nothing else is installed: run by `make dist`, not by pytest.

python tests/try_wheel.py dist/snapgrad-X.whl
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("NPROC", "4")

import snapgrad

ROOT = Path(__file__).parents[1]
wheel = Path(sys.argv[1]).resolve()
assert wheel.stat().st_size < 1e6, f"{wheel} has {wheel.stat().st_size} bytes, 1 MB is the most."
names = zipfile.ZipFile(wheel).namelist()
assert "snapgrad/py.typed" in names and all(
    name.startswith(("snapgrad/", f"snapgrad-{snapgrad.__version__}")) for name in names
), names
assert ROOT not in Path(snapgrad.__file__).resolve().parents or ".venv-dist" in snapgrad.__file__, (
    f"the snapgrad that was imported is not that of the wheel: {snapgrad.__file__}"
)

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    command = str(Path(sys.executable).with_name("snapgrad"))
    assert (
        "reproduce" in subprocess.run([command, "--help"], check=True, capture_output=True, text=True).stdout
    )
    version = subprocess.run(
        [command, "--version"], check=True, capture_output=True, text=True
    ).stdout.split()
    assert version == ["snapgrad", snapgrad.__version__], version
    subprocess.run([command, "pinn", "poisson-2d", "--seconds", "5"], check=True, stdout=subprocess.DEVNULL)
    assert Path("results/report.html").exists()
    namespace: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL):
        exec(compile(block, "README.md", "exec"), namespace)
print(f"{wheel.name}, {wheel.stat().st_size // 1000} kB: installs, and the README's examples run")
