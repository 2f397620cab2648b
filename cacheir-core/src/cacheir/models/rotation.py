"""The tables of cosine and sine in main: one for each way to turn, also where long sequences turn in another way.

Sources of the two ways that depend on a sequence's length: Ding et al., "LongRoPE" (arXiv 2402.13753); dynamic NTK as
``modeling_rope_utils`` of transformers computes it, in float32 and in its order.
"""

from __future__ import annotations

from cacheir.ir.builder import GraphBuilder
from cacheir.ir.graph import Value
from cacheir.ir.types import TensorType
from cacheir.models.decoder_spec import RopeSpec

SEQUENCE_LENGTHS = "sequence_lengths"
Table = tuple[Value, ...]


class RotationTables:
    """Writes tables into ``graph``, each once. Those that depend on it read ``%sequence_lengths`` i32 [T]: how many
    tokens the sequence of each token has, those that later steps feed included. It is an input where one is needed,
    which is never in a program whose sequences, of at most ``max_seq`` tokens, are too short to turn otherwise.
    """

    def __init__(self, graph: GraphBuilder, positions: Value, max_seq: int) -> None:
        self._graph = graph
        self._max_seq = max_seq
        self._positions = positions
        self._lengths: Value | None = None
        self._tables: dict[tuple[object, ...], Table] = {}

    def of(self, rope: RopeSpec) -> Table:
        """Cosine and sine f32 [T, dims / 2]; layouts share a table, since they only pair its columns otherwise."""
        key = (rope.theta, rope.dims, rope.factors, rope.magnitude, rope.original, rope.long_factors, rope.growth)
        if key not in self._tables:
            self._tables[key] = self._written(rope)
        return self._tables[key]

    def _written(self, rope: RopeSpec) -> Table:
        may_be_longer = self._max_seq > rope.original > 0
        if may_be_longer and rope.growth:
            return self._grown(rope)
        short = self._plain(rope, rope.factors)
        if not (may_be_longer and rope.long_factors):
            return short
        with self._graph.scope("rotation"):
            is_long = self._beyond(rope, ("T", "1"))
            long = self._plain(rope, rope.long_factors)
            return tuple(
                self._graph.op("select", is_long, *pair, result=name)
                for name, *pair in zip(("cos", "sin"), long, short)
            )

    def _plain(self, rope: RopeSpec, factors: tuple[float, ...]) -> Table:
        return self._graph.op_results(
            "rope_table",
            self._positions,
            theta=float(rope.theta),
            dims=rope.dims,
            factors=tuple(map(float, factors)),
            magnitude=float(rope.magnitude),
        )

    def _grown(self, rope: RopeSpec) -> Table:
        """Tables whose base follows the length of each token's sequence, from ``original`` on."""
        graph, half = self._graph, rope.dims // 2
        with graph.scope("rotation"):
            longer = graph.op("maximum", self._sequence_lengths(), self._whole(rope.original), result="longer")
            ratio = graph.op("multiply", graph.op("cast", longer, dtype="f32"), self._number(rope.growth))
            ratio = graph.op("divide", ratio, self._number(rope.original), result="ratio")
            ratio = graph.op("subtract", ratio, self._number(rope.growth - 1), result="ratio")
            # The power of a number is taken in float64, as torch takes it; its last bit is felt far out.
            exponent = self._number(rope.dims / (rope.dims - 2), "f64")
            grown = graph.op("power", graph.op("cast", ratio, dtype="f64", result="ratio"), exponent, result="grown")
            grown = graph.op("cast", grown, dtype="f32", result="grown")
            theta = graph.op("multiply", self._number(rope.theta), grown, result="theta")
            # No rounding of the ratio may move the base of a sequence that is not longer.
            theta = graph.op("select", self._beyond(rope, ("T",)), theta, self._number(rope.theta), result="theta")
            theta = graph.op("reshape", theta, shape=("T", "1"), result="theta")
            pair = graph.op("iota", shape=("1", str(half)), axis=1, dtype="f32", result="pair")
            pair = graph.op("multiply", pair, self._number(2.0), result="pair")
            exponent = graph.op("divide", pair, self._number(rope.dims), result="exponent")
            period = graph.op("power", theta, exponent, result="period")
            frequency = graph.op("divide", self._number(1.0), period, result="frequency")
            turns = graph.op("cast", self._positions, dtype="f32", result="turns")
            turns = graph.op("reshape", turns, shape=("T", "1"), result="turns")
            angle = graph.op("multiply", turns, frequency, result="angle")
            tables = [graph.op(name, angle, result=name) for name in ("cos", "sin")]
            if rope.magnitude != 1:
                tables = [graph.op("multiply", table, self._number(rope.magnitude)) for table in tables]
            return tuple(tables)

    def _beyond(self, rope: RopeSpec, shape: tuple[str, ...]) -> Value:
        """Whether the sequence of each token has more than ``original`` tokens, bool ``shape``."""
        graph = self._graph
        longer = graph.op(
            "compare", self._sequence_lengths(), self._whole(rope.original), direction="gt", result="is_long"
        )
        return longer if shape == ("T",) else graph.op("reshape", longer, shape=shape, result="is_long")

    def _sequence_lengths(self) -> Value:
        if self._lengths is None:
            self._lengths = self._graph.input(SEQUENCE_LENGTHS, TensorType.of("i32", "T"))
        return self._lengths

    def _number(self, value: float, dtype: str = "f32") -> Value:
        return self._graph.op("constant", dtype=dtype, shape=(), values=(float(value),), result="number")

    def _whole(self, value: int) -> Value:
        return self._graph.op("constant", dtype="i32", shape=(), values=(value,), result="original")
