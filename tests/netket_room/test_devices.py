"""On four devices, over which NetKet spreads the samples, the driver takes the steps of one."""

import os
import subprocess
import sys
from pathlib import Path

import devices
import jax
import numpy as np
from chains import MARKS

pytestmark = MARKS
CACHE = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"


def test_four_devices_take_the_steps_of_one(tmp_path):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = dict(os.environ, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    environment |= {name.upper(): str(getattr(jax.config, name)) for name in CACHE}
    script = str(Path(devices.__file__))
    four = subprocess.Popen(
        [sys.executable, "-W", "ignore", script, str(tmp_path / "four.npz")],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wanted = devices.results()  # meanwhile
        _, errors = four.communicate(timeout=300)
    finally:
        four.kill()
    assert four.returncode == 0, errors[-3000:]
    found = np.load(tmp_path / "four.npz")
    # A checkpoint of four devices goes on on one, and both as a run that was never interrupted.
    wanted["resumed"] = devices.resumed(devices.saved())
    np.testing.assert_allclose(devices.resumed(found["saved"]), wanted["resumed"], rtol=1e-10, atol=1e-12)
    for name, numbers in wanted.items():
        assert np.linalg.norm(found[name] - numbers) < 1e-10 * np.linalg.norm(numbers), name
