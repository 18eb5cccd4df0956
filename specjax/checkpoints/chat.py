"""Chat templates: what a person says -> the text that a model reads.

Templates are Jinja2 programs of whoever made the model, so they run in its
sandbox; names and options are those that transformers gives them.
"""

import dataclasses
import datetime
import functools
import json
from typing import Any, Mapping

from specjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Template:
  """The template of a model.

  Attributes:
    source: the program.
    tokens: special tokens by the names that it calls them by, bos_token say.
    path: of the file that holds it, for messages.
  """

  source: str
  tokens: Mapping[str, str]
  path: Any

  def __call__(self, text: str) -> str:
    """One turn of a user, and the head of the answer.

    Raises:
      UserError: the template is faulty, or takes no such turn.
    """
    message = {"role": "user", "content": text}
    try:
      return self._program.render(
          messages=[message], add_generation_prompt=True, **self.tokens
      )
    # The program is a stranger's: anything may come.
    except Exception as error:
      reason = " ".join(str(error).split()) or type(error).__name__
      raise UserError(
          f"{self.path}: the chat template fails ({reason}); give"
          " --config.data.chat=false to do without it"
      ) from None

  @functools.cached_property
  def _program(self):
    from jinja2 import sandbox

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = functools.partial(
        json.dumps, ensure_ascii=False
    )
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    return environment.from_string(self.source)


def _refuse(reason: str):
  raise ValueError(reason)
