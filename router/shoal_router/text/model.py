"""TextModel: everything textual about one compiled model, loaded from its model directory.

    tokenizer/tokenizer.json            text <-> ids                      required
    tokenizer/chat_template.jinja       messages -> prompt                without it there is no chat
    tokenizer/generation_config.json    further stop ids, sampling        optional
    manifest.json                       name, digest, bos and eos ids

Sampling defaults: what a request leaves out is taken from generation_config.json, where the model's authors say how
their model wants to be sampled, and else from OpenAI's defaults (temperature 1, nothing cut off).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer

from shoal.errors import ManifestError
from shoal.manifest import TOKENIZER_DIR, read_manifest
from shoal_router.text.call_format import CallFormat
from shoal_router.text.detokenize import Detokenizer, TokenBytes
from shoal_router.text.template import ChatTemplate, Message, TemplateRefused


class GenerationConfig(BaseModel):
    """The part of generation_config.json that concerns serving; the rest of it is about training and beam search."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    eos_token_id: int | list[int] | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=10)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids, whether the file gives one, several or none."""
        if self.eos_token_id is None:
            return ()
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)


@dataclass(frozen=True, slots=True)
class TextModel:
    """One model's tokenizer, template and defaults. `stop_token_ids` end an answer and are never shown."""

    name: str
    digest: str
    tokenizer: Tokenizer
    token_bytes: TokenBytes
    template: ChatTemplate | None
    stop_token_ids: frozenset[int]
    defaults: GenerationConfig = field(default_factory=GenerationConfig)

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows, added tokens included."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The text's ids. A rendered chat prompt holds its special tokens already; a bare prompt does not."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat prompt. `variables` are further ones of the template. Raises TemplateRefused."""
        if self.template is None:
            raise TemplateRefused("this model has no chat template: use /v1/completions")
        return self.template.render(messages, tools=tools, variables=variables)

    @property
    def call_format(self) -> CallFormat | None:
        """How the model writes tool calls; None: its chat template knows no tools."""
        return None if self.template is None else self.template.call_format

    def token_ids(self, names: Iterable[str]) -> frozenset[int]:
        """The ids of tokens with these names, as far as the vocabulary has them."""
        return frozenset(found for name in names if (found := self.tokenizer.token_to_id(name)) is not None)

    def detokenizer(self, *, begins_text: bool, revealed: frozenset[int] = frozenset()) -> Detokenizer:
        """For one answer; see Detokenizer."""
        return Detokenizer(self.token_bytes, begins_text=begins_text, revealed=revealed)

    def decode(self, ids: Iterable[int], *, begins_text: bool = True) -> str:
        """The whole text of some ids, special tokens left out."""
        detokenizer = self.detokenizer(begins_text=begins_text)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


def load_text_model(directory: Path, *, now: Callable[[], datetime] = datetime.now) -> TextModel:
    """Load a model directory's text side. Raises ManifestError with the file's name when one cannot be used."""
    manifest = read_manifest(directory)
    folder = directory / TOKENIZER_DIR
    tokenizer = _load_tokenizer(folder / "tokenizer.json")
    config = _load_generation_config(folder / "generation_config.json")
    stop_ids = dict.fromkeys((*manifest.eos_token_ids, *config.eos_token_ids))
    template_source = _read_optional(folder / "chat_template.jinja")
    template = None
    if template_source is not None:
        template = ChatTemplate(
            template_source,
            bos_token=_token(tokenizer, manifest.bos_token_id),
            eos_token=_token(tokenizer, next(iter(stop_ids), None)),
            now=now,
        )
    return TextModel(
        name=manifest.name,
        digest=manifest.digest,
        tokenizer=tokenizer,
        token_bytes=TokenBytes(tokenizer),
        template=template,
        stop_token_ids=frozenset(stop_ids),
        defaults=config,
    )


def _load_tokenizer(path: Path) -> Tokenizer:
    source = _read_optional(path)
    if source is None:
        raise ManifestError(f"{path} is missing: compile the model again")
    try:
        tokenizer = Tokenizer.from_str(source)
    except Exception as error:  # the library raises plain Exception for anything that it cannot parse
        raise ManifestError(f"{path} cannot be used: {error}") from error
    # Files from training may ask for cutting or padding; a prompt must reach the model whole.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _load_generation_config(path: Path) -> GenerationConfig:
    source = _read_optional(path)
    if source is None:
        return GenerationConfig()
    try:
        return GenerationConfig.model_validate_json(source)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise ManifestError(f"{path} cannot be used: {where}: {first['msg']}") from error


def _read_optional(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error


def _token(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.id_to_token(token_id) or ""
