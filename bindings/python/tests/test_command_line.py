import subprocess
import sys


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


def test_exit_codes_are_those_of_the_command(tmp_path):
    done = wgfc(tmp_path, "compile", "absent.onnx")
    assert done.returncode == 1 and "absent.onnx" in done.stderr
    assert not list(tmp_path.iterdir())
