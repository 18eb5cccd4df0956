"""What is read out of a compiled program's text."""

from specjax import hlo


def test_copies():
  """What only moves, as a program for a TPU writes it; not inside a fusion."""
  program = """HloModule test

%fused_computation.3 (p: f32[9,9]) -> f32[9,9] {
  ROOT %copy.7 = f32[9,9]{1,0} copy(%p)
}

ENTRY %main (a: bf16[8,128]) -> pred[100] {
  %a = bf16[8,128]{1,0:T(8,128)} parameter(0)
  %b = (bf16[8,128]{1,0:S(1)}, bf16[8,128]{1,0}, u32[]) copy-start(%a)
  %c = bf16[8,128]{1,0:T(8,128)S(1)} copy-done(%b)
  %d = ((f32[6,4]{1,0}), f32[3,4]{1,0:S(1)}, s32[]) slice-start(%x), slice={}
  %e = f32[3,4]{1,0:S(1)} slice-done(%d)
  %f = u32[2,4]{0,1:T(2,128)} copy(%y)
  %g = f32[9,9]{1,0} fusion(%z), kind=kLoop, calls=%fused_computation.3
  ROOT %h = pred[100]{0} custom-call(%e), custom_call_target="Other"
}
"""
  assert hlo.copies(program) == 2 * 8 * 128 + 4 * 3 * 4 + 4 * 2 * 4
  costs = {"bytes accessed": 9.0, "bytes accessed0{}": 4.0}
  costs |= {"bytes accessed12{}": 2.0, "bytes accessedout{}": 3.0}
  assert hlo.operands(costs) == 6
