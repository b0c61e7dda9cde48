"""Chat templates: messages to the text a model was trained on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jinja2.meta import find_undeclared_variables

from headway.errors import InvalidRequestError, ModelError
from headway.models.sandbox import Sandbox, context_for, raise_exception
from headway.models.template_budget import Budget, BudgetExceededError

_MAX_TIME_FORMAT_CHARS = 100


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """How much a rendering may do.

    work: characters handled, an operation counting as 256. The default, a quarter of a million
        operations, ends the worst template in seconds; a conversation of a hundred messages
        needs one or two thousand.
    output_chars: most characters of the result.
    """

    work: int = 1 << 26
    output_chars: int = 1 << 24


class ChatTemplate:
    """A model's template, compiled once; rendering is safe from any thread.

    takes_tools: whether it writes tools into the prompt.
    Raises ModelError at construction for a template that is malformed.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        limits: TemplateLimits = TemplateLimits(),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """tokens: what templates call `bos_token`, `eos_token`. now: local time, for dates."""
        self.source = source
        self.takes_tools = False
        self._limits = limits
        self._now = now
        self._tokens = dict(tokens)
        sandbox = Sandbox()
        try:
            self._template = sandbox.compiled(source)
            self.takes_tools = "tools" in find_undeclared_variables(sandbox.parse(source))
        except Exception as e:
            raise ModelError(f"chat template: {_one_line(e)}") from e

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        /,
        **variables: object,
    ) -> str:
        """The prompt for a conversation.

        messages: as in OpenAI's API, content as text. variables: further ones, such as `tools`.
        Raises InvalidRequestError where the template refuses, fails, or does too much.
        """
        given = {
            **self._tokens,
            "tools": None,
            "documents": None,
            **variables,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "raise_exception": raise_exception,
            "strftime_now": self._strftime,
        }
        try:
            text = self._template.render(context_for(given, Budget(self._limits.work)))
        except InvalidRequestError:
            raise
        except BudgetExceededError as e:
            raise InvalidRequestError("the chat template does too much work", "messages") from e
        except Exception as e:
            # A template is a stranger's code: whatever it raises is about this conversation.
            raise InvalidRequestError(f"the chat template fails: {_one_line(e)}", "messages") from e
        if len(text) > self._limits.output_chars:
            raise InvalidRequestError("the chat template writes too much", "messages")
        return text

    def _strftime(self, pattern: str) -> str:
        return self._now().strftime(str(pattern)[:_MAX_TIME_FORMAT_CHARS])


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
