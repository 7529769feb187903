"""Language models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

from actorflow import ops
from actorflow.errors import GraphError, ShapeError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob
from actorflow.nn import init
from actorflow.nn.embedding import Embedding
from actorflow.nn.layers import Dropout
from actorflow.nn.recurrent import LSTM
from actorflow.nn.weighted import InnerProduct


class LSTMLanguageModel(Composite):
    """Scores of the token that comes next, at each place of a text: embedding, LSTM, inner product.

    Bottom: tokens (steps, batch), integers from 0 to ``vocabulary - 1``, and perhaps the hidden state and the cell to
    go on from, (layers, batch, ``hidden``), which are 0 otherwise. Top: scores (steps, batch, vocabulary), for
    `ops.softmax_loss` with the tokens one step later, and the last hidden state and cell.

    Args:
        vocabulary: How many tokens there are.
        features: Length of a token's vector.
        hidden: Length of the state.
        layers: Of the LSTM.
        dropout: Share of the elements dropped before and after the LSTM, in training.
        dtype: Of weights and scores.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Zaremba, Sutskever and Vinyals, Recurrent neural network regularization, 2014, but for the dropout between
        layers; Minerva's LSTM example.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        features: int = 64,
        hidden: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        dtype: npt.DTypeLike = "float32",
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        table = init.gaussian(0.1, seed=seed)
        self.embedding = Embedding(vocabulary, features, dtype=dtype, weight_init=table, name="embedding")
        self.lstm = LSTM(hidden, layers, seed=seed, name="lstm")
        self.scores = InnerProduct(vocabulary, weight_init=init.xavier(seed), name="scores")
        self.dropouts = [Dropout(dropout, seed, name=f"dropout{i}") for i in range(2)]

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """One or three bottom blobs, three top blobs."""
        if len(bottom) not in (1, 3):
            raise GraphError(f"LSTMLanguageModel takes 1 or 3 bottom blobs (tokens, hidden, cell), got {len(bottom)}")
        tokens, *state = bottom
        if len(tokens.shape) != 2:
            raise ShapeError(f"LSTMLanguageModel: tokens must have shape (steps, batch), got {tokens.spec}")
        before, after = self.dropouts
        x = before(self.embedding(tokens, training=training), training=training)
        y, hidden, cell = self.lstm(x, *state, training=training)
        rows = ops.reshape(after(y, training=training), (-1, y.shape[-1]))
        scores = self.scores(rows, training=training)
        return ops.reshape(scores, (*tokens.shape, scores.shape[-1])), hidden, cell
