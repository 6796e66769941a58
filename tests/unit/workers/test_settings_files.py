"""Settings in files: their precedence, their typos, and passwords that other users can read."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tiercel.workers.config import Settings, exposed
from tiercel.workers.errors import ConfigError

pytestmark = pytest.mark.usefixtures("folder")

ROOT = Path(__file__).parents[3]


@pytest.fixture
def open_folder(monkeypatch):
    """A current folder that other users can enter; pytest's own are closed to them."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    monkeypatch.chdir(path)
    yield path
    shutil.rmtree(path)


def write(name, text, mode=0o600):
    Path(name).write_text(text)
    Path(name).chmod(mode)


def refused(**given):
    with pytest.raises(ConfigError) as error:
        Settings.load(**given)
    line = str(error.value)
    assert "\n" not in line
    return line


def test_each_place_overrides_the_places_after_it(folder, monkeypatch):
    """The order on the page: command line, environment, secrets or .env, and a TOML file."""
    secrets = folder / "secrets"
    secrets.mkdir()
    write("tiercel.toml", 'master = "local[5]"')
    assert Settings.load().master == "local[5]"
    write(".env", "TIERCEL_MASTER=local[4]")
    assert Settings.load().master == "local[4]"
    monkeypatch.setenv("TIERCEL_SECRETS", str(secrets))
    assert Settings.load().master == "local[5]"
    write("secrets/tiercel_master", "local[3]")
    assert Settings.load().master == "local[3]"
    monkeypatch.setenv("TIERCEL_MASTER", "local[2]")
    assert Settings.load().master == "local[2]"
    assert Settings.load(master="local[1]").master == "local[1]"


def test_a_developers_env_file_is_nothing_to_a_process_that_is_given_secrets(folder, monkeypatch):
    """A container mounts the project's folder, whose .env is closed to the container's user."""
    monkeypatch.setenv("TIERCEL_SECRETS", str(folder))
    write("tiercel_redis", "redis://:drawn@redis:6379/0")
    Path(".env").mkdir()  # which not even root can read as a file
    assert Settings.load().redis == "redis://:drawn@redis:6379/0"
    Path(".env").rmdir()
    write(".env", "TIERCEL_REDIS=redis://:mine@localhost/0\nTIERCEL_SPOUT_TASK=1", mode=0o644)
    assert Settings.load().redis == "redis://:drawn@redis:6379/0"
    assert exposed({}) == []


def test_a_table_in_pyproject_is_as_good_as_a_file_of_its_own():
    write("pyproject.toml", '[project]\nname = "x"\n[tool.tiercel]\nspout_tasks = 3\nlog = "json"')
    settings = Settings.load()
    assert (settings.spout_tasks, settings.log) == (3, "json")


def test_settings_in_both_files_are_refused():
    write("tiercel.toml", "spout_tasks = 3")
    write("pyproject.toml", "[tool.tiercel]\nspout_tasks = 3")
    assert refused() == (
        "both tiercel.toml and [tool.tiercel] in pyproject.toml have settings: keep one of the two"
    )


def test_other_variables_of_an_env_file_are_for_other_programs():
    write(".env", "POSTGRES_PASSWORD=x\nTIERCEL_SPOUT_TASKS=2\nTIERCEL_IMAGE=ours:1\n")
    assert Settings.load().spout_tasks == 2


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_typo_in_each_setting_is_refused_with_the_nearest_name(name, monkeypatch):
    typo = f"{name[:-2]}{name[-1]}"
    write("tiercel.toml", f'{typo} = "x"')
    assert refused().startswith(f"tiercel.toml: there is no setting '{typo}'; did you mean ")
    assert repr(name) in refused()
    Path("tiercel.toml").unlink()

    variable = f"TIERCEL_{typo.upper()}"
    write(".env", f"{variable}=x")
    assert refused().startswith(f".env: {variable} is no setting; did you mean ")
    Path(".env").unlink()

    monkeypatch.setenv(variable, "x")
    assert refused().startswith(f"{variable} is no setting; did you mean ")
    assert f"'TIERCEL_{name.upper()}'" in refused()


def test_a_key_that_is_like_none_is_refused_with_all_of_them():
    write("tiercel.toml", "[server]\nhost = 1")
    assert "there is no setting 'server'; the settings are amqp, amqp_ca, " in refused()


@pytest.mark.parametrize(
    "name", ["TIERCEL_MONITOR_PORT", "TIERCEL_REDIS_SERVICE_HOST", "TIERCEL_REDIS_PORT_6379_TCP"]
)
def test_variables_that_kubernetes_makes_of_a_service_are_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "tcp://10.0.0.1:6379")
    Settings.load()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('amqp = "amqp://', "tiercel.toml cannot be read as TOML: "),
        ('amqp = "rabbit:5672"', "amqp in tiercel.toml: must look like amqp://"),
        ("spout_tasks = 0", "spout_tasks in tiercel.toml: Input should be greater than"),
        ('redis = "redis://:p@s3cret/x@host"', "redis in tiercel.toml: "),
    ],
)
def test_a_bad_file_is_one_line_that_names_it_and_shows_no_password(text, line):
    write("tiercel.toml", text)
    assert refused().startswith(line)
    assert "s3cret" not in refused()


def test_more_that_is_no_settings_file():
    Path("tiercel.toml").write_bytes(b"\xff\xfe")
    assert refused() == "tiercel.toml cannot be read: it is not UTF-8"
    Path("tiercel.toml").unlink()
    write("pyproject.toml", "[tool]\ntiercel = 3")
    assert refused() == "pyproject.toml cannot be read as TOML: [tool.tiercel] must be a table"
    Path("pyproject.toml").unlink()
    write(".env", "TIERCEL_LOG=xml")
    assert refused().startswith("TIERCEL_LOG in .env: ")


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("amqp://rabbit:5672/v", "amqp://ops:a%40b%2Fc%3A%25@rabbit:5672/v"),
        ("amqp://one,two:1", "amqp://ops:a%40b%2Fc%3A%25@one,two:1"),
        ("amqp://me:mine@rabbit", "amqp://me:mine@rabbit"),
    ],
)
def test_a_login_may_be_given_apart_from_the_address_with_any_characters(url, whole):
    write("tiercel.toml", f'amqp = "{url}"')
    write(".env", "TIERCEL_AMQP_USER=ops\nTIERCEL_AMQP_PASSWORD=a@b/c:%")
    settings = Settings.load()
    assert settings.amqp == whole
    assert "a@b/c" not in repr(settings)


def test_a_password_alone_goes_to_each_redis(monkeypatch):
    monkeypatch.setenv("TIERCEL_REDIS", "redis://a/0,redis+cluster://b,c")
    monkeypatch.setenv("TIERCEL_REDIS_PASSWORD", "p@w")
    assert Settings.load().redis_urls == ("redis://:p%40w@a/0", "redis+cluster://:p%40w@b,c")


def test_a_child_loads_the_same_settings_whatever_the_files_say(monkeypatch):
    write("tiercel.toml", 'amqp = "amqp://rabbit"\namqp_password = "s3cret"\nspout_tasks = 2')
    settings = Settings.load()
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    write("tiercel.toml", 'amqp = "amqp://other"\nmaster = "local[1]"')
    assert Settings.load() == settings
    assert exposed({}) == []


SECRETS = [
    ("tiercel.toml", 'amqp = "amqp://u:pw@rabbit"'),
    ("tiercel.toml", 'redis_password = "pw"'),
    ("pyproject.toml", '[tool.tiercel]\nredis = "redis://:pw@redis"'),
    (".env", "TIERCEL_TOKEN=0123456789abcdef"),
]


@pytest.mark.parametrize(("file", "text"), SECRETS)
def test_a_password_that_every_user_can_read_is_one_line(file, text, open_folder):
    write(file, text, mode=0o644)
    assert exposed({}) == [
        f"{file} has a password, and every user of this machine can read it: chmod o-r {file}"
    ]
    Path(file).chmod(0o640)
    assert exposed({}) == []


@pytest.mark.parametrize(("file", "text"), SECRETS)
def test_a_file_in_a_folder_that_others_cannot_enter_is_safe(file, text, open_folder):
    write(file, text, mode=0o644)
    open_folder.chmod(0o700)
    assert exposed({}) == []


def test_a_file_without_a_password_or_whose_password_is_not_used_is_no_matter(open_folder):
    write("tiercel.toml", 'amqp = "amqp://rabbit"\nlog = "json"', mode=0o644)
    assert exposed({}) == []
    write("tiercel.toml", 'amqp = "amqp://u:pw@rabbit"', mode=0o644)
    assert exposed({"amqp": "amqp://u:other@rabbit"}) == []


def test_the_page_lists_each_setting_with_its_variable():
    rows = [
        line.split("|")[1:3]
        for line in (ROOT / "docs/settings.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    listed = {
        key: variable
        for keys, variables in rows
        for key, variable in zip(names(keys), names(variables), strict=True)
    }
    assert listed == {name: f"TIERCEL_{name.upper()}" for name in Settings.model_fields}


def names(cell):
    return [each.strip(" `") for each in cell.split(",")]
