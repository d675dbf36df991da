"""A model's free parameters, read as numbers, switches and words."""

from collections.abc import Collection, Mapping

from services.core.errors import ConfigError
from services.core.flags import parse_bool


class Parameters:
    """Reads texts by their keys; a key without a text counts as absent.

    Every error is a ConfigError that names the key, its text, and what would have
    been right.
    """

    def __init__(self, owner: str, texts: Mapping[str, str]) -> None:
        """Remember whose they are, for messages: "model 'm'"."""
        self._owner = owner
        self._texts = texts

    def number(
        self, key: str, default: int, *, least: int = 0, most: int | None = None
    ) -> int:
        """Return a whole number between ``least`` and ``most``.

        Raises:
            ConfigError: it is none.
        """
        text = self._texts.get(key, "").strip()
        if not text:
            return default
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            upto = f"{least} or more" if most is None else f"{least}..{most}"
            raise self.wrong(key, f"a number, {upto}")
        return number

    def switch(self, key: str, *, default: bool) -> bool:
        """Return whether something is on, written as Triton's backends take it.

        Raises:
            ConfigError: it is neither on nor off.
        """
        text = self._texts.get(key, "").strip()
        if not text:
            return default
        try:
            return parse_bool(text)
        except ValueError:
            raise self.wrong(key, "1 or true, 0 or false") from None

    def word(self, key: str, words: Collection[str], default: str) -> str:
        """Return one of ``words``.

        Raises:
            ConfigError: it is another.
        """
        text = self._texts.get(key, "").strip()
        if not text:
            return default
        if text not in words:
            raise self.wrong(key, f"one of {', '.join(words)}")
        return text

    def wrong(self, key: str, expected: str) -> ConfigError:
        """Return the error of a text that is not as expected."""
        text = self._texts.get(key, "")
        return ConfigError(
            f"parameter '{key}' of {self._owner} is '{text}': expected {expected}"
        )
