"""The room where NetKet is not installed."""

import subprocess
import sys


def test_without_netket_the_rest_imports_and_the_room_says_what_to_install():
    code = (
        "import sys, snapgrad; assert 'netket' not in sys.modules; sys.modules['netket'] = None\n"
        "try:\n    import snapgrad.netket\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'snapgrad[netket]'" in done.stdout
