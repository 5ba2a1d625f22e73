import subprocess
import sys

import pytest

import wgfc as package


def wgfc(folder, *arguments):
    return subprocess.run([sys.executable, "-m", "wgfc", *arguments], cwd=folder, capture_output=True, text=True)


def test_the_command_line_comes_with_the_package(small, tmp_path):
    done = wgfc(tmp_path, "compile", str(small("mlp")))
    assert done.returncode == 0, done.stderr
    assert "wgfc run model --random-inputs --dim batch=1" in done.stdout
    assert (tmp_path / "model" / "plan.json").is_file()
    ran = wgfc(tmp_path, "run", "model", "--random-inputs", "--dim", "batch=2", "--adapter", "software", "--json")
    assert ran.returncode == 0, ran.stderr
    assert '"probabilities"' in ran.stdout


def test_devices_are_measured(tmp_path):
    path = tmp_path / "suite.json"
    record = package.bench_suite(path, quick=True, only=["dispatch"], passes=1, adapter="software", progress=False)
    rows = {row["id"]: row for row in record["rows"]}
    assert rows["dispatch/sequential/wall"]["median"] > 0
    again = package.bench_suite(path, quick=True, only=["dispatch"], passes=1, adapter="software", progress=False)
    assert again == record, "what is done is not done again"
    with pytest.raises(package.Error, match="no task has nothing in its name"):
        package.bench_suite(path, quick=True, only=["nothing"], progress=False)


def test_exit_codes_are_those_of_the_command(tmp_path):
    done = wgfc(tmp_path, "compile", "absent.onnx")
    assert done.returncode == 1 and "absent.onnx" in done.stderr
    assert not list(tmp_path.iterdir())
