"""Learned values for ``generate`` of `transformers`."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, PreTrainedModel

from lmrl.checkpoints.export import load_values
from lmrl.decoding.engine import ParameterWatch
from lmrl.decoding.sampling import Head, add_q_to_logits, min_q
from lmrl.errors import UserError, check_range
from lmrl.models.tokenizer import load_tokenizer
from lmrl.tokens.encoding import Window, encoder_for, invalid_ids

__all__ = ["ValueGuidedLogitsProcessor"]


class ValueGuidedLogitsProcessor(LogitsProcessor):
    """Adds ``beta * min_i Q_i`` to the logits, so that ``model.generate`` plays an MC or ILQL policy.

    The same as `ValueGuidedPolicy`, for those who generate with `transformers`: greedy, sampled, with temperature,
    top-k and top-p (which act on the sum), with beams. Batches are padded on the left, as for ``generate`` in general::

        processor = ValueGuidedLogitsProcessor.from_pretrained("runs/maze_fo/ilql/best")
        model.generate(**tokenizer(texts, return_tensors="pt"), logits_processor=[processor])

    Args:
        value_model: reads the same ids as the language model.
        q_heads: ``(n, width)`` hidden vectors to ``(n, vocabulary)``.
        beta: weight of the values; 0 leaves the logits as they are, but for `invalid`.
        invalid: ``(vocabulary,)`` bool, True for ids that are never said.
        pad_token_id: id at the left of shorter rows; None: no row is padded.

    Raises:
        UserError: no head, or a beta that is negative or not finite.
    """

    def __init__(
        self,
        value_model: PreTrainedModel,
        q_heads: Sequence[Head],
        beta: float,
        invalid: Tensor | None = None,
        pad_token_id: int | None = None,
    ) -> None:
        if not q_heads:
            raise UserError("q_heads must have at least one head, got none")
        check_range("[0, inf)", beta=beta)
        self.value_model = value_model
        self.q_heads = tuple(q_heads)
        self.beta = beta
        self.invalid = invalid
        self.pad_token_id = pad_token_id
        self._weights = ParameterWatch(value_model)
        self._read = torch.empty(0, 0, dtype=torch.long)
        self._cache = DynamicCache()

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, beta: float | None = None, device: str | torch.device = "cpu"
    ) -> "ValueGuidedLogitsProcessor":
        """The values of an exported folder.

        Args:
            folder: beside a checkpoint (``runs/maze_fo/ilql/best``), or of ``lmrl export``.
            beta: weight of the values; None: the one of the run.
            device: where the language model is.

        Raises:
            UserError: if the folder has no values.
        """
        values = load_values(folder)
        tokenizer = load_tokenizer(str(folder))
        trunk = values.trunk.to(device)  # type: ignore[arg-type]
        heads = [head.to(device) for head in values.q_heads]
        end = encoder_for(tokenizer, Window(rendering=values.settings.get("rendering", "text"))).end
        invalid = invalid_ids(tokenizer, heads[0].outer.out_features, trunk.device, end)
        return cls(trunk, heads, values.settings["beta"] if beta is None else beta, invalid, tokenizer.pad_token_id)

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits of the next tokens, weighed.

        Args:
            input_ids: ``(rows, length)``.
            scores: ``(rows, vocabulary)`` logits of the language model.
        """
        combined = add_q_to_logits(scores, min_q(self.q_heads, self._hidden(input_ids)), self.beta)
        return combined if self.invalid is None else combined.masked_fill(self.invalid, -torch.inf)

    def _hidden(self, ids: Tensor) -> Tensor:
        """``(rows, width)`` after the last token; only what was not read before is read."""
        before = self._read.shape[1]
        # Else it is another text, beams have changed places, or the model has learned in between.
        goes_on = 0 < before < ids.shape[1] and torch.equal(ids[:, :before], self._read.to(ids.device))
        if self._weights.changed() or not goes_on:
            self._cache = DynamicCache()
            before = 0
        seen = torch.ones_like(ids) if self.pad_token_id is None else (ids != self.pad_token_id).cumsum(1).clamp(max=1)
        hidden: Tensor = self.value_model(
            input_ids=ids[:, before:],
            attention_mask=seen,
            position_ids=(seen.cumsum(1) - 1).clamp(min=0)[:, before:],
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        self._read = ids.clone()
        return hidden[:, -1]
