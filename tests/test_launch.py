"""What launch/ would run: dry runs, read word by word."""

import copy
import math
import pathlib
import shlex
import shutil
import subprocess

import jsonschema
import nbclient
import nbformat
import pytest
import yaml

from specjax import command_line

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = ROOT / "launch" / "tpu_vm.sh"
NOTEBOOK = ROOT / "launch" / "colab.ipynb"
SCHEMA = ROOT / "tests" / "fixtures" / "jobset.yaml"
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


def test_compute_engine(monkeypatch):
  """The same without workers, of which there is one."""
  monkeypatch.chdir(ROOT)
  old, new = (commands(*how, "vm", "zone", CONFIG) for how in ([], ["--gce"]))
  assert len(old) == len(new) == 5
  for before, after in zip(old[1:], new[1:]):
    words = [word for word in before if word != "--worker=0"]
    if words[0] == "gcloud":
      del words[2:4]
      assert after[:2] == ["gcloud", "compute"]
    assert [w for w in words if "bundle" not in w] == [
        w for w in after if "bundle" not in w
    ]
  assert options(new[2]).out == "out/tpu_vm"


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
  job, pod = spec_of(made), pod_of(made)
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


def refused(manifest):
  """What the schema has against a manifest, by the places."""
  schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
  validator = jsonschema.Draft202012Validator(schema)
  validator.check_schema(schema)
  return {error.json_path for error in validator.iter_errors(manifest)}


def test_jobset_is_one():
  manifest = yaml.safe_load((ROOT / "launch" / "jobset.yaml").read_text())
  assert not refused(manifest)
  job = "$.spec.replicatedJobs[0].template.spec"
  pod = f"{job}.template.spec"
  for where, change in (
      ("$.apiVersion", lambda all: all.update(apiVersion="jobset/v1")),
      ("$.metadata", lambda all: all.update(metadata={})),
      ("$.spec", lambda all: all["spec"].update(failurepolicy={})),
      (job, lambda all: spec_of(all).pop("template")),
      (f"{job}.completions", lambda all: spec_of(all).update(completions="2")),
      (pod, lambda all: pod_of(all).pop("containers")),
      (
          f"{pod}.restartPolicy",
          lambda all: pod_of(all).update(restartPolicy="Always"),
      ),
      (
          f"{pod}.containers[0].command[0]",
          lambda all: pod_of(all)["containers"][0].update(command=[1]),
      ),
  ):
    broken = copy.deepcopy(manifest)
    change(broken)
    assert refused(broken) == {where}


def spec_of(manifest):
  """The Job's."""
  return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]


def pod_of(manifest):
  return spec_of(manifest)["template"]["spec"]


@pytest.mark.parametrize(
    "words", (["vm"], ["--all", "--gce", "vm", "zone", CONFIG]), ids=len
)
def test_usage(words):
  done = launch("--dry-run", *words)
  assert done.returncode == 2 and done.stderr.startswith("usage: ")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
def test_shellcheck():
  done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True)
  assert done.returncode == 0, done.stdout


def test_the_notebook_is_clean():
  """Without anybody's outputs, and of cells that can be read."""
  notebook = nbformat.read(NOTEBOOK, as_version=4)
  nbformat.validate(notebook)
  for cell in notebook.cells:
    if cell.cell_type == "code":
      assert not cell.outputs and cell.execution_count is None
      compile(cell.source, NOTEBOOK.name, "exec")


@pytest.mark.slow
def test_the_notebook_runs():
  """From top to bottom; its pictures are there, and no cell complains."""
  notebook = nbformat.read(NOTEBOOK, as_version=4)
  where = {"metadata": {"path": str(NOTEBOOK.parent)}}
  nbclient.NotebookClient(notebook, timeout=900, resources=where).execute()
  outputs = [
      output
      for cell in notebook.cells
      if cell.cell_type == "code"
      for output in cell.outputs
  ]
  said = "".join(out.text for out in outputs if out.output_type == "stream")
  for words in (
      "Go on with the next cell.",
      "accepted draft",
      "measured speed-up",
      "written: out/colab/report.json",
      "gamma",
  ):
    assert words in said, words
  shown = [out.data for out in outputs if "data" in out]
  assert sum("image/png" in data for data in shown) == 2
  assert any("<iframe srcdoc=" in data.get("text/html", "") for data in shown)
