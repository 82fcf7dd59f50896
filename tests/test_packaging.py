"""What is installed: every package, every asset, every dependency that the code imports."""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Modules whose name is not that of their distribution.
DISTRIBUTIONS = {
    "absl": "absl-py",
    "google": "protobuf",
    "ml_collections": "ml-collections",
    "orbax": "orbax-checkpoint",
    "tensorboardX": "tensorboardX",
}
# Imported only where a user has them: by the extras, or as a better alternative to a built-in rule.
OPTIONAL = {"torch", "alfworld", "textworld", "spacy"}


@pytest.fixture(scope="module")
def metadata():
    """What setup.py declares, as the keyword arguments it passes on."""
    program = (
        "import json, setuptools; setuptools.setup = lambda **k: print(json.dumps(k)); exec(open('setup.py').read())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def third_party_imports():
    """Top-level modules that rspo_jax and run.py import, with the file that does."""
    found = {}
    for path in [*sorted((ROOT / "rspo_jax").rglob("*.py")), *sorted(ROOT.glob("run.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            else:
                continue
            found.update({name.split(".")[0]: path.relative_to(ROOT) for name in names})
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names and name != "rspo_jax"}


def test_every_import_is_a_declared_dependency(metadata):
    declared = {re.split(r"[><=\[]", requirement)[0].lower() for requirement in metadata["install_requires"]}
    missing = {
        name: str(path)
        for name, path in third_party_imports().items()
        if name not in OPTIONAL and DISTRIBUTIONS.get(name, name).lower() not in declared
    }
    assert missing == {}


def test_every_dependency_is_imported_and_has_a_lower_bound(metadata):
    imported = {DISTRIBUTIONS.get(name, name).lower() for name in third_party_imports()}
    for requirement in metadata["install_requires"]:
        name, bound, version = requirement.partition(">=")
        assert bound and re.fullmatch(r"[\d.]+", version), requirement
        assert name.lower() in imported, f"{name} is declared and never imported"


def test_packages_have_an_init_file(metadata):
    with_code = {path.parent for path in (ROOT / "rspo_jax").rglob("*.py")}
    packages = {ROOT / package.replace(".", "/") for package in metadata["packages"]}
    assert with_code == packages


def test_a_wheel_holds_all_code_and_data(tmp_path):
    """Builds from the files that a clone has: what git tracks, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    pytest.importorskip("setuptools.build_meta")
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    for name in names:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    command = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)], cwd=tmp_path / "source", check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {name for name in names if name.startswith("rspo_jax/")}
    assert expected - packed == set()
    assert not [name for name in packed if not name.startswith(("rspo_jax/", "rspo_jax-"))]


def test_the_assets_stay_small():
    sizes = [path.stat().st_size for path in (ROOT / "rspo_jax" / "assets").rglob("*") if path.is_file()]
    assert sum(sizes) < 4_000_000


def test_the_ci_script_is_valid_bash():
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
