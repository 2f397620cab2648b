"""The end of a decode step: which rows are over, what the host is told, and where the others go on."""

from __future__ import annotations

import torch
from torch import Tensor

from cacheir_cuda.row_stops import STOPPED


def end_rows(tokens: Tensor, stops: Tensor, positions: Tensor, fed: Tensor, told: Tensor) -> None:
    """tokens i32 [R], stops i32 [R, STOP_WORDS] (``row_stops``) -> told i32 [R]; fed takes the tokens.

    Rows that ended before tell STOPPED. ``stops`` says whether a row has ended; positions [R] of the others move on.
    """
    over, left = stops[:, 0] != 0, stops[:, 1]
    told.copy_(torch.where(over, STOPPED, tokens))
    fed.copy_(tokens)
    over = over | (left == 1) | (tokens[:, None] == stops[:, 4:]).any(1)
    stops[:, 0].copy_(over)
    left.sub_((left > 1).int())
    positions.add_((~over).int())


def move_rows(
    slots: Tensor, table: Tensor, lengths: Tensor, positions: Tensor, stops: Tensor, page_tokens: int
) -> None:
    """The places of one KV group: slots [R] are those of positions [R] in table [R, M], lengths [R] one longer.

    Negative slots (padding, or a token that nobody may keep) stay; a row that is over has one, and its length stays.
    """
    over = stops[:, 0] != 0
    index = positions.div(page_tokens, rounding_mode="floor").clamp(max=table.shape[1] - 1)
    page = table.gather(1, index.long()[:, None])[:, 0]
    following = page * page_tokens + positions.remainder(page_tokens)
    slots.copy_(torch.where(slots < 0, slots, torch.where(over, -1, following)))
    lengths.add_((~over).int())
