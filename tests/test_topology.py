"""Static trees: order, levels, files, and what is refused."""

import json

import pytest

from specjax import errors
from specjax import topology

Topology = topology.Topology


def test_nodes_are_in_order_of_depth():
  """Of which mask rows follow, see tests/test_verify_tree.py."""
  tree = Topology(((1, 0), (1,), (0,), (0, 1, 0), (0, 1), (0, 0)))
  assert tree.paths == ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0))
  assert tree.parents == (-1, -1, 0, 0, 1, 3)
  assert (tree.nodes, tree.depth) == (6, 3)
  assert tree.children(0) == (0, 1) and tree.children(1) == (2, 3)
  assert [tree.level(depth) for depth in range(4)] == [(0,), (1, 2), (4,), ()]
  assert tree.whole and not Topology(((1,),)).whole
  assert topology.chain(3).parents == (-1, 0, 1)


def test_files_and_texts(tmp_path):
  tree = Topology(((0,), (1,), (0, 0)))
  text = json.dumps(topology.dump(tree.paths))
  file = tmp_path / "tree.json"
  for content in (text, json.dumps({"paths": json.loads(text), "nodes": 3})):
    file.write_text(content, encoding="utf-8")
    assert topology.read(str(file)) == tree == topology.read(text)
  trees = {"3": {"paths": json.loads(text)}, "1": {"paths": [[0]]}}
  file.write_text(json.dumps({"paths": [[1]], "trees": trees}))
  assert topology.read(f"{file}:3") == tree
  assert topology.read(f"{file}:1").nodes == topology.read(str(file)).nodes == 1
  assert topology.find(f"{file}:1") == (file, "1")
  with pytest.raises(errors.UserError, match="none of 2 nodes; it has 3, 1$"):
    topology.read(f"{file}:2")
  for old in (text, json.dumps({"paths": json.loads(text)})):
    file.write_text(old)
    with pytest.raises(errors.UserError, match="has no sizes") as caught:
      topology.read(f"{file}:3")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[]", "1 to"),
        ("[[0, 0]]", "the path above it"),
        ("[[0], [0]]", "once"),
        ("[[-1]]", "ranks"),
        ("[[]]", "ranks"),
        ("[[true]]", "ranks"),
        ("[[0.5]]", "ranks"),
        ("[0, 1]", "rank paths"),
        ("[[0]", "rank paths"),
        ("[[[0]]]", "ranks"),
        ("nowhere.json", "no file"),
        ("nowhere.json:8", "no file"),
        ("mini/eagle_tree:x", "no file"),
        ("[[999]]", "ranks"),
    ],
)
def test_what_is_no_tree_is_refused(text, word):
  with pytest.raises(errors.UserError, match=f"^tree: .*{word}") as caught:
    topology.read(text)
  assert "\n" not in str(caught.value)
