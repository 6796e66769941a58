"""The machine's pip configuration, as passed to the build of an image."""

from __future__ import annotations

import subprocess
import sys
from configparser import RawConfigParser

import pytest

from tests.support.pip_settings import pip_settings

INDEX = "https://index.example/simple"


def passed_on(*listed: str) -> dict[str, dict[str, str]]:
    settings = RawConfigParser()
    settings.read_string(pip_settings("\n".join(listed)))
    return {section: dict(settings[section]) for section in settings.sections()}


def test_an_index_a_timeout_and_retries_travel():
    found = passed_on(
        f"global.index-url='{INDEX}'",
        "global.timeout='60'",
        "install.retries='9'",
        "global.trusted-host='a b'",
    )
    assert found == {
        "global": {"index-url": INDEX, "timeout": "60", "trusted-host": "a b"},
        "install": {"retries": "9"},
    }


LOCAL = {
    "build-constraint": "/etc/pip/build.txt",
    "cache-dir": "/var/cache/pip",
    "cert": "/etc/ssl/own.crt",
    "client-cert": "/etc/ssl/own.pem",
    "config-file": "/etc/own.conf",
    "constraint": "/etc/pip/constraints.txt",
    "editable": "/home/somebody/project",
    "find-links": "/opt/wheels ../wheels file:///opt/wheels",
    "extra-index-url": "file:///opt/simple http://127.0.0.1:3141/simple http://localhost/simple",
    "index-url": "file:///opt/simple",
    "log": "/var/log/pip.log",
    "no-index": "true",
    "only-binary": ":all:",
    "prefix": "/opt/prefix",
    "proxy": "http://localhost:3128",
    "python": "/opt/python",
    "report": "report.json",
    "require-virtualenv": "true",
    "requirement": "/etc/pip/always.txt",
    "root": "/opt/root",
    "src": "/usr/src",
    "target": "/opt/target",
    "user": "true",
}


@pytest.mark.parametrize("section", ["global", "install", "wheel", "download", ":env:"])
@pytest.mark.parametrize("name", LOCAL)
def test_what_names_something_of_this_machine_stays_here(section, name):
    assert passed_on(f"{section}.{name}={LOCAL[name]!r}") == {"global": {}}


def test_of_several_places_those_of_other_machines_travel():
    found = passed_on(
        "global.constraint='/etc/pip/constraints.txt'",
        f"global.extra-index-url='file:///opt/simple {INDEX}'",
        f"install.find-links='\\n/opt/wheels\\n{INDEX}/wheels'",
    )
    assert found == {
        "global": {"extra-index-url": INDEX},
        "install": {"find-links": f"{INDEX}/wheels"},
    }


def test_the_environment_goes_before_every_file():
    found = passed_on(
        ":env:.index-url='https://environment.example/'", ":env:.find-links='/opt/wheels'",
        f"global.index-url='{INDEX}'", f"install.index-url='{INDEX}'",
        f"wheel.find-links='{INDEX}'",
    )  # fmt: skip
    assert found == {
        "global": {"index-url": "https://environment.example/"},
        "install": {},
        "wheel": {},
    }


def test_a_real_pip_with_such_a_configuration_is_understood(tmp_path, monkeypatch):
    conf = tmp_path / "pip.conf"
    conf.write_text(
        "[global]\nconstraint = /nowhere/constraints.txt\nfind-links = /nowhere\nextra-index-url "
        f"=\n    {INDEX}\n    file:///nowhere/simple\n[install]\nretries = 7\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    monkeypatch.setenv("PIP_BUILD_CONSTRAINT", "/nowhere/build.txt")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "61")
    settings = RawConfigParser()
    settings.read_string(pip_settings())
    assert settings["global"]["extra-index-url"].split()[-1] == INDEX
    assert settings["global"]["default-timeout"] == "61"
    assert settings["install"]["retries"] == "7"
    assert "nowhere" not in pip_settings()
    (tmp_path / "made.conf").write_text(pip_settings())
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "made.conf"))
    subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True)
