"""What launch/ would run: dry runs, read word by word."""

import math
import pathlib
import shlex
import shutil
import subprocess

import pytest
import yaml

from specjax import command_line

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = ROOT / "launch" / "tpu_vm.sh"
CONFIG = "configs/ende_t5small.py:mini"


def launch(*arguments):
  return subprocess.run(
      ["bash", SCRIPT, *arguments], capture_output=True, text=True
  )


def commands(*arguments):
  """The words of each command of a dry run."""
  done = launch("--dry-run", *arguments)
  assert done.returncode == 0, done.stderr
  return [shlex.split(line) for line in done.stdout.splitlines()]


def options(ssh):
  """The config of the run that a command starts on the VM."""
  remote = ssh[-1].removeprefix("--command=")
  words = shlex.split(remote.rpartition(" && ")[2])
  at = words.index("specjax.run")
  assert words[at - 2 : at] == ["python", "-m"]
  return command_line.read(words[at:])


def test_one_host(monkeypatch):
  monkeypatch.chdir(ROOT)
  bundle, up, ssh, folder, down = commands(
      "vm", "zone", CONFIG, "--config.data.text=two words, 'quoted'"
  )
  assert bundle[:3] == ["git", "bundle", "create"]
  for command in (up, ssh, down):
    assert command[:4] == ["gcloud", "compute", "tpus", "tpu-vm"]
    assert "--zone=zone" in command and "--worker=0" in command
  config = options(ssh)
  assert config.data.text == "two words, 'quoted'"
  assert config.out == "out/tpu_vm" and config.hosts.count == 1
  assert folder == ["mkdir", "-p", "out"]
  assert "vm:specjax/out/tpu_vm" in down


def test_all_hosts_of_a_slice(monkeypatch):
  """All run; the report is the first one's."""
  monkeypatch.chdir(ROOT)
  _, up, ssh, _, down = commands(
      "--all", "vm", "zone", CONFIG, "--config.mesh.data=8"
  )
  assert "--worker=all" in up and "--worker=all" in ssh
  assert "--worker=0" in down
  config = options(ssh)
  assert config.hosts.count == 0 and config.mesh.data == 8


def test_jobset(monkeypatch):
  """Hosts times chips are the topology's, and the mesh is of all."""
  monkeypatch.chdir(ROOT)
  made = yaml.safe_load((ROOT / "launch" / "jobset.yaml").read_text())
  assert made["kind"] == "JobSet"
  [jobs] = made["spec"]["replicatedJobs"]
  job = jobs["template"]["spec"]
  pod = job["template"]["spec"]
  [container] = pod["containers"]
  assert job["parallelism"] == job["completions"]
  each = container["resources"]["limits"]["google.com/tpu"]
  chips = job["completions"] * each
  topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
  assert math.prod(map(int, topology.split("x"))) == chips
  assert container["command"][:3] == ["python", "-m", "specjax.run"]
  config = command_line.read(container["command"][2:])
  assert config.hosts.count == 0
  assert config.mesh.data * config.mesh.model == chips
  [mount], [volume] = container["volumeMounts"], pod["volumes"]
  assert mount["name"] == volume["name"]
  assert config.out.startswith(mount["mountPath"])


def test_usage():
  done = launch("--dry-run", "vm")
  assert done.returncode == 2 and done.stderr.startswith("usage: ")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
def test_shellcheck():
  done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True)
  assert done.returncode == 0, done.stdout
