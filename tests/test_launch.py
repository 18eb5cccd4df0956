"""What launch/ would run: dry runs, read word by word."""

import copy
import math
import os
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
ZONE = "us-west4-a"


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
  root, bundle, up, ssh, folder, down = commands(
      "vm", ZONE, CONFIG, "--config.target.checkpoint=two words, 'quoted'"
  )
  assert root == ["cd", str(ROOT)]
  assert bundle[:3] == ["git", "bundle", "create"]
  for command in (up, ssh, down):
    assert command[:4] == ["gcloud", "compute", "tpus", "tpu-vm"]
    assert f"--zone={ZONE}" in command and "--worker=0" in command
    assert not any(word.startswith("--project") for word in command)
  config = options(ssh)
  assert config.target.checkpoint == "two words, 'quoted'"
  assert config.out == "out/tpu_vm" and config.hosts.count == 1
  assert folder == ["mkdir", "-p", "out"]
  assert "vm:specjax/out/tpu_vm" in down


def test_one_text(monkeypatch):
  """It is shown, and there is no report to bring back."""
  monkeypatch.chdir(ROOT)
  text = "--config.data.text=two words, 'quoted'"
  *_, ssh, folder = commands("vm", ZONE, CONFIG, text)
  assert options(ssh).data.text == "two words, 'quoted'"
  assert folder == ["mkdir", "-p", "out"]
  # Of a slice what was compiled still goes round.
  *_, compiled, spread = commands("--all", "vm", ZONE, CONFIG, text)
  assert "vm:.cache/specjax" in compiled and "vm:.cache/" in spread
  # The last one counts.
  *_, down = commands("vm", ZONE, CONFIG, text, "--config.data.text=")
  assert "vm:specjax/out/tpu_vm" in down


def test_compute_engine(monkeypatch):
  """The same without workers, of which there is one."""
  monkeypatch.chdir(ROOT)
  old, new = (commands(*how, "vm", ZONE, CONFIG) for how in ([], ["--gce"]))
  assert len(old) == len(new) == 6
  for before, after in zip(old[2:], new[2:]):
    words = [word for word in before if word != "--worker=0"]
    if words[0] == "gcloud":
      del words[2:4]
      assert after[:2] == ["gcloud", "compute"]
    assert [w for w in words if "bundle" not in w] == [
        w for w in after if "bundle" not in w
    ]
  assert options(new[3]).out == "out/tpu_vm"


def test_project():
  """Every command of gcloud has it."""
  made = commands("--project=mine", "vm", ZONE, CONFIG)
  asked = [words for words in made if words[0] == "gcloud"]
  assert len(asked) == 3 and all("--project=mine" in words for words in asked)


def test_all_hosts_of_a_slice(monkeypatch):
  """All run; the report is the first one's, and so is what was compiled."""
  monkeypatch.chdir(ROOT)
  *_, up, ssh, _, down, compiled, spread = commands(
      "--all", "vm", ZONE, CONFIG, "--config.mesh.data=8"
  )
  for command in (up, ssh, spread):
    assert "--worker=all" in command
  for command in (down, compiled):
    assert "--worker=0" in command
  assert "JAX_COMPILATION_CACHE_DIR=$HOME/.cache/specjax " in ssh[-1]
  assert "vm:.cache/specjax" in compiled and "vm:.cache/" in spread
  config = options(ssh)
  assert config.hosts.count == 0 and config.mesh.data == 8


def test_jobset(monkeypatch):
  """Hosts times chips are the topology's, and the mesh is of all."""
  monkeypatch.chdir(ROOT)
  made = yaml.safe_load((ROOT / "launch" / "jobset.yaml").read_text())
  job, pod = spec_of(made), pod_of(made)
  [container] = pod["containers"]
  assert made["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
  assert made["metadata"]["annotations"] == {
      "alpha.jobset.sigs.k8s.io/exclusive-topology": (
          "cloud.google.com/gke-nodepool"
      )
  }
  assert job["parallelism"] == job["completions"] == 2
  assert job["completionMode"] == "Indexed"
  assert set(pod["nodeSelector"]) == {
      "cloud.google.com/gke-tpu-accelerator",
      "cloud.google.com/gke-tpu-topology",
  }
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
  kept = [config.out, *(each["value"] for each in container["env"])]
  assert all(path.startswith(mount["mountPath"] + "/") for path in kept)
  assert container["env"][0]["name"] == "JAX_COMPILATION_CACHE_DIR"


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


def test_jobset_in_the_models_of_its_api():
  """Those generated from JobSet's and Kubernetes' own descriptions.

  They drop what they do not know, and refuse other types.
  """
  models = pytest.importorskip("kubeflow_trainer_api.models")
  manifest = yaml.safe_load((ROOT / "launch" / "jobset.yaml").read_text())
  read = lambda made: models.JobsetV1alpha2JobSet.from_dict(made).to_dict()
  assert read(manifest) == manifest
  broken = copy.deepcopy(manifest)
  spec_of(broken)["completion"] = 2
  assert read(broken) == manifest
  spec_of(broken)["completions"] = "two"
  with pytest.raises(ValueError, match="completions"):
    read(broken)


def spec_of(manifest):
  """The Job's."""
  return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]


def pod_of(manifest):
  return spec_of(manifest)["template"]["spec"]


@pytest.mark.parametrize(
    "words, line",
    (
        (["vm"], "give NAME, ZONE and CONFIG, such as my-v5e us-west4-a"),
        (["vm", CONFIG, "--config.out=a"], "ZONE: give one such as us-west4-a"),
        (["vm", ZONE, "none.py"], "CONFIG: give a file that is committed"),
        (["vm", ZONE, CONFIG, "x=1"], "OPTION: give --config.KEY=VALUE, got"),
        (["vm", ZONE, CONFIG, "--config.out=a"], "OPTION: leave out --config"),
        (["--all", "--gce", "vm", ZONE, CONFIG], "give one of --all and --gce"),
        (["--project", "p", "vm", ZONE, CONFIG], "--project: there is no such"),
    ),
    ids=str,
)
def test_what_is_missing(words, line):
  """Told in one line, dry run or not."""
  for how in (["--dry-run"], []):
    done = launch(*how, *words)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"launch/tpu_vm.sh: {line}")
    assert done.stderr.count("\n") == 1


def test_no_project(tmp_path):
  """Where gcloud has none; nothing else is asked of it."""
  gcloud = tmp_path / "gcloud"
  gcloud.write_text("#!/bin/sh\ntest \"$*\" = 'config get-value project'\n")
  gcloud.chmod(0o755)
  done = subprocess.run(
      ["bash", SCRIPT, "vm", ZONE, CONFIG],
      env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2
  assert done.stderr == (
      "launch/tpu_vm.sh: give --project=PROJECT; gcloud has none of its own\n"
  )


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
