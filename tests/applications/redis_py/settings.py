"""What redis-py's tests run with here: without those that excused.txt names, and with the certificates in TARN_TEST_TLS."""

import os
import pathlib
import tracemalloc

import pytest
from tests import ssl_utils

LIST = pathlib.Path(__file__).with_name("excused.txt")
# It tells where leaked objects came from, and makes all of it take three times as long.
tracemalloc.start = lambda: None


def certificates(subdir=None, cert_type=ssl_utils.CertificateType.client):
    folder = pathlib.Path(os.environ["TARN_TEST_TLS"])
    name = "server" if cert_type == ssl_utils.CertificateType.server else "client"
    return ssl_utils.TLSFiles(*(str(folder / file) for file in (f"{name}.crt", f"{name}.key", "ca.crt")))


ssl_utils.get_tls_certificates = certificates


def excused():
    """The reason for each name."""
    reasons, reason = {}, None
    for line in LIST.read_text().splitlines():
        if line.startswith("["):
            reason = line.strip("[]")
        elif line and not line.startswith("#"):
            reasons[line] = reason
    return reasons


def pytest_collection_modifyitems(config, items):
    reasons = excused()
    met, files = set(), set()
    for item in items:
        name = item.nodeid.split("[")[0].removeprefix("tests/")
        files.add(name.split("::")[0])
        met.add(name)
        if name in reasons:
            item.add_marker(pytest.mark.skip(reason=f"excused: {reasons[name]}"))
    unknown = [name for name in reasons if name.split("::")[0] in files and name not in met]
    if unknown:
        raise pytest.UsageError(f"{LIST.name} names tests that are not there: {unknown}")
