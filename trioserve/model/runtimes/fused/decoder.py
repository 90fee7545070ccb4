"""A decoder on a GPU: products by PyTorch, and Triton's kernels between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
import logging
from operator import attrgetter
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor, nn

from ....kernels.triton.decodes import NewBlocks, take_tokens
from ....kernels.triton.paged import PagedLayer
from ....kernels.triton.paged_latents import LatentLayer
from ....kernels.triton.sampling import Kept, choose_plain, choose_tokens
from ....kernels.triton.steps import Angles, normalize
from ....kernels.triton.tiles import (
    AdapterTiles,
    Spans,
    Tiles,
    list_rows,
    list_spans,
)
from ....types.plan import StepRow
from ...attention.backend import PagedModel
from ...attention.paged_triton import TritonAttention
from ...device.numbers import Numbers
from ...shards.group import TensorGroup
from ...states.pool import StateCopies
from ...step.layout import StepInputs
from ...step.plain import ChosenTokens, PlainRows, StepOutput
from ...step.scans import TorchScans
from ...step.slots import SlotTables
from ..description import AttentionParts, DecoderParts, LatentParts
from .adapters import FusedAdapters
from .decode_check import find_fault
from .decode_inputs import (
    DecodeInputs,
    list_choices,
    list_new_blocks,
    list_tokens,
    list_trial,
)
from .graphs import Capture, DecodeGraphs, GraphOutput, list_sizes
from .latents import LatentAttention
from .layer import Layer, LayerStep, Sublayer
from .low_bits import LowBits
from .mixers import Attention, Mixer, make_state_mixer
from .products import join_products
from .weights import MixerWeights, SublayerWeights, list_calls, take_weights

logger = logging.getLogger(__name__)


class FusedDecoder:
    """A decoder's layers and head.

    Args:
      parts: of a model on its device. Its modules lose their weights.
      make_capture: makes the Capture of decodes (graphs.py); None runs decodes by
        single launches.
      group: the processes that share the layers; None if they are whole.

    Raises:
      NotRecognised: no module has lost anything.
      OutputDiffers: the kernels of weights in fewer bits compute something else.
    """

    name = "native triton"

    def __init__(
        self,
        parts: DecoderParts,
        make_capture: Callable[[], Capture] | None = None,
        *,
        group: TensorGroup | None = None,
    ) -> None:
        self.make_capture = make_capture
        self._low_bits = low_bits = LowBits(parts.dtype)
        self.weights = take_weights(parts, low_bits)
        self.parts = parts
        self.group = group
        # A head may be the embedding, too, so its module keeps its weight.
        self.head = None
        if parts.head is not None:
            self.head = join_products([parts.head], make=low_bits)
        low_bits.allocate()
        formats = low_bits.describe()
        self.description = f"{self.name}, {formats}" if formats else self.name

    def make_scans(self) -> TorchScans:
        """Make the scans of the logits."""
        return TorchScans()

    def round_inputs(self) -> None:
        """Round the inputs of products; see DecoderOnKernels (on_kernels.py)."""
        self._low_bits.round_inputs()

    def open(
        self,
        tables: SlotTables,
        *,
        num_blocks: int,
        num_window_blocks: int | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> FusedLayers:
        """Allocate a KV cache, and return the layers with it.

        Args:
          tables: the blocks of each slot.
        """
        return FusedLayers(self, tables, num_blocks, num_window_blocks, kv_dtype)


class FusedLayers:
    """The layers of a FusedDecoder, with a KV cache of their own."""

    def __init__(
        self,
        decoder: FusedDecoder,
        tables: SlotTables,
        num_blocks: int,
        num_window_blocks: int | None,
        kv_dtype: torch.dtype | None,
    ) -> None:
        self._parts = parts = decoder.parts
        self._dtype = parts.dtype
        self._head = decoder.head
        self._group = decoder.group
        self._make_capture = decoder.make_capture
        self._tables = tables
        self._num_blocks = min(num_blocks, num_window_blocks or num_blocks)
        # By whether rows have adapters.
        self._graphs: dict[bool, DecodeGraphs] = {}
        self._capture: Capture | None = None
        self._sizes: list[int] = []
        self._embed: Callable[[Tensor], Tensor] | None = None
        self._chooses = False
        calls = list_calls(
            each.body.parts
            for layer in decoder.weights
            for each in layer
            if isinstance(each.body, MixerWeights)
        )
        self._attention = TritonAttention(
            PagedModel(
                layers=tuple(calls),
                num_blocks=num_blocks,
                num_window_blocks=num_window_blocks,
                block_size=tables.block_size,
                dtype=self._dtype,
                kv_dtype=kv_dtype,
                device=tables.last_token_ids.device,
            ),
            tables,
        )
        paged = iter(self._attention.layers)
        writers = [
            (i, each)
            for i, layer in enumerate(decoder.weights)
            for each in layer
            if each.writes_cache
        ]
        # The layer of the last one; without any, all tokens go through all layers.
        self._last_written, last_writer = writers[-1] if writers else (-1, None)
        made = [
            [
                Sublayer(i, each, self._make_mixer(each, paged), each is last_writer)
                for each in layer
            ]
            for i, layer in enumerate(decoder.weights)
        ]
        everywhere = [each for layer in made for each in layer]
        products = [each for own in everywhere for each in own.weights.products]
        self.adapters = FusedAdapters(
            [*products, *([] if self._head is None else [self._head])],
            parts.names,
            self._dtype,
            tables.last_token_ids.device,
        )
        # Weak, because a cache must be free at once when nobody has the layers any more.
        capture = WeakMethod(self._capture_adapted)
        self.adapters.on_growth = lambda: _call(capture)
        self._layers = tuple(
            Layer(sublayers, parts, self.adapters, decoder.group) for sublayers in made
        )
        mixers = (each.mixer for each in everywhere)
        states = [
            each for mixer in mixers if mixer is not None for each in mixer.states
        ]
        copies = StateCopies(states, first=len(tables.last_token_ids))
        self.copies = copies if states else None

    def _make_mixer(
        self, sublayer: SublayerWeights, paged: Iterator[PagedLayer]
    ) -> Mixer | None:
        """Make what mixes tokens, with its cache; None if nothing does."""
        weights, epsilon = sublayer.body, self._parts.epsilon
        if not isinstance(weights, MixerWeights):
            return None
        mixer = weights.parts
        if isinstance(mixer, AttentionParts):
            return Attention(mixer, next(paged), epsilon)
        if isinstance(mixer, LatentParts):
            latents, projection = next(paged), weights.projection
            assert isinstance(latents, LatentLayer), "its values are in its keys"
            assert projection is not None, "it has latents"
            query = weights.between[0] if weights.between else None
            return LatentAttention(mixer, projection, query, latents)
        num_places = len(self._tables.last_token_ids) + self._tables.num_checkpoints
        return make_state_mixer(
            mixer, weights.between, num_places, self._dtype, epsilon
        )

    def order(self, rows: Sequence[StepRow]) -> list[int]:
        """Put single tokens first, and those of the same adapter side by side."""
        places = [*range(len(rows))]
        if max(map(attrgetter("num_tokens"), rows)) > 1:
            places = self._attention.order(rows)
        numbers = self._tables.find_adapters(rows)
        if not numbers:
            return places
        return sorted(places, key=lambda i: (rows[i].num_tokens > 1, numbers[i]))

    @property
    def reads_tokens(self) -> bool:
        """Whether the graphs look up the vectors of tokens."""
        return self._embed is not None

    def prepare(
        self,
        max_num_seqs: int,
        *,
        embed: Callable[[Tensor], Tensor] | None = None,
        chooses: bool = False,
    ) -> None:
        """Compile kernels; capture the graphs of decodes, in at most half of the free memory."""
        for layer in self._layers:
            layer.compile()
        if self._make_capture is None:
            return
        self._embed, self._chooses = embed, chooses and self._head is not None
        if self._embed is not None or self._chooses:
            fault = find_fault(self._tables.last_token_ids.device, self._dtype)
            if fault is not None:
                logger.info("graphs get no tokens and choose none: %s", fault)
                self._embed, self._chooses = None, False
        self._capture = self._make_capture()
        self._sizes = list_sizes(max_num_seqs)
        self._capture_graphs(has_adapters=False)
        if self.adapters.has_changes:
            self._capture_adapted()

    @torch.inference_mode()
    def _capture_adapted(self) -> None:
        """Capture the graphs of decodes with adapters, if there are graphs."""
        # Processes that share the layers get an adapter between different steps, and then
        # some would pad their rows and some would not.
        if self._capture is not None and self._group is None:
            self._capture_graphs(has_adapters=True)

    def _capture_graphs(self, *, has_adapters: bool) -> None:
        assert self._capture is not None, "prepare has made it"
        # Their memory is free for the new ones.
        self._graphs.pop(has_adapters, None)
        device, group = self._tables.last_token_ids.device, self._group
        graphs = DecodeGraphs(
            self._compute_decodes,
            partial(self._make_inputs, has_adapters=has_adapters),
            self._capture,
            self._sizes,
            _watch_memory(device),
            agree=bool if group is None else partial(group.agree, device=device),
            # An adapter may come while sequences have all slots and blocks.
            compares=not has_adapters,
            draw=self._draw if self._chooses else None,
        )
        self._graphs[has_adapters] = graphs
        kind = "decodes with adapters" if has_adapters else "decodes"
        if graphs.fault is None:
            logger.info("graphs of %s: %s", kind, graphs.sizes)
        else:
            logger.warning("graphs of %s: %s; %s", kind, graphs.sizes, graphs.fault)

    def _make_inputs(self, size: int, *, has_adapters: bool) -> DecodeInputs:
        has_states = self.copies is not None
        inputs = DecodeInputs(
            size,
            self._tables,
            None if self.reads_tokens else self._make_vectors(size),
            has_states=has_states,
            has_adapters=has_adapters,
        )
        if not has_adapters:
            inputs.fill(
                list_trial(size, self._tables, self._num_blocks, has_states=has_states)
            )
        return inputs

    def _make_vectors(self, size: int) -> Tensor:
        device = self._tables.last_token_ids.device
        numbers = torch.linspace(-1.0, 1.0, self._parts.hidden_size, device=device)
        return numbers.to(self._dtype).repeat(size, 1)

    def _compute_decodes(self, inputs: DecodeInputs) -> GraphOutput:
        """Compute a step of decodes from inputs that lie at the same places in each step."""
        numbers, tiles = inputs.numbers, inputs.tiles
        tables = [(tiles.tables, "block_places", "block_ids")]
        if tiles.window_tables is not None:
            tables.append((tiles.window_tables, "window_places", "window_ids"))
        token_ids = take_tokens(
            *(numbers["tokens"], tiles.slots, self._tables.last_token_ids),
            [
                NewBlocks(table=each, places=numbers[places], block_ids=numbers[ids])
                for each, places, ids in tables
            ],
        )
        vectors = inputs.vectors
        if self._embed is not None:
            vectors = self._embed(token_ids[None])[0]
        assert vectors is not None, "the graph gets vectors, or looks them up"
        lookups = self._look_up(token_ids[None], vectors)
        hidden = self._compute(vectors, LayerStep(tiles, lookups=lookups))
        output = self._finish(hidden, tiles.adapters)
        if not self._chooses:
            return output, None
        temperatures, keys = numbers["temperatures"], numbers["keys"]
        chosen = choose_plain(output, temperatures, keys, self._keep(inputs))
        return output, chosen

    def _draw(self, inputs: DecodeInputs, logits: Tensor) -> Tensor:
        """Choose the tokens of rows that have settings, in place of `_compute_decodes`."""
        settings, kept = inputs.numbers["settings"], self._keep(inputs)
        return choose_tokens(logits, settings, has_cut=True, kept=kept)

    def _keep(self, inputs: DecodeInputs) -> Kept:
        return Kept(
            places=inputs.numbers["places"],
            slots=inputs.tiles.slots,
            last_tokens=self._tables.last_token_ids,
        )

    def replay(
        self,
        inputs: StepInputs,
        tokens: Sequence[int],
        vectors: Tensor | None = None,
        plain: PlainRows | None = None,
    ) -> StepOutput | None:
        """Run a step of decodes by a graph; see LayersOnKernels (on_kernels.py)."""
        if (vectors is None) != self.reads_tokens:
            return None
        num_rows = len(inputs.rows)
        graphs = self._graphs.get(bool(inputs.adapters))
        captured = None if graphs is None else graphs.find(num_rows)
        if captured is None:
            return None
        numbers: dict[str, Numbers] = {
            **list_tokens(inputs),
            **list_new_blocks(self._tables, captured.size),
        }
        if self.copies is not None:
            numbers["rows"] = _list_rows(inputs)
        if inputs.adapters:
            numbers["adapters"] = self.adapters.list_tiles(inputs)
            numbers["adapter_slots"] = self.adapters.list_slots(inputs)
        if not self._chooses or not tokens:
            plain = None
        if plain is not None and plain.settings is not None and not captured.draws:
            plain = None
        if plain is not None:
            numbers |= list_choices(plain, tokens, num_rows)
        output, chosen = captured.run(numbers, vectors)
        # Copies of what the next step overwrites, unless it is read before.
        if plain is not None:
            assert chosen is not None, "the graph chooses tokens"
            return ChosenTokens(chosen[: len(tokens)])
        if self._head is None:
            return output[:num_rows].clone()
        if [*tokens] == [*range(num_rows)]:
            return output[:num_rows]
        return output[inputs.numbers.add(np.array(tokens, dtype=np.int64)).get()]

    def run(
        self,
        vectors: Tensor,
        inputs: StepInputs,
        tokens: Sequence[int],
        positions: Tensor,
        deepstack: Tensor | None = None,
    ) -> Tensor:
        """Run one step; see LayersOnKernels (on_kernels.py)."""
        index = np.array(tokens, dtype=np.int64)
        places = inputs.numbers.add(index)
        decodes = None
        if self._narrows(inputs, tokens, deepstack):
            decodes = inputs.numbers.add(_list_tiles(inputs, index))
        tiles = self._cut(inputs)
        adapters = self.adapters.cut_wanted(inputs, tokens)
        angles = self._find_angles(vectors, positions)
        lookups = self._look_up(inputs.input_ids, vectors)
        step = LayerStep(tiles, angles, lookups)
        if decodes is not None:
            kept = tiles.keep(places.get(), decodes.get(), adapters)
            step = step.narrow(places.get(), kept)
        hidden = self._compute(vectors, step, deepstack)
        if self._head is None:
            return hidden
        if step.wanted is None:
            hidden = hidden[places.get()]
        return self._finish(hidden, adapters)

    def _narrows(
        self, inputs: StepInputs, tokens: Sequence[int], deepstack: Tensor | None
    ) -> bool:
        """Return whether only the tokens whose logits are wanted need the last layers."""
        return (
            self._head is not None
            and len(tokens) < len(inputs.tokens)
            and {*tokens} <= {*inputs.last_tokens}
            and (0 if deepstack is None else len(deepstack)) <= self._last_written
        )

    def _cut(self, inputs: StepInputs) -> Tiles:
        """Cut the tokens of a step into tiles, and list its rows for states."""
        rows, spans = None, None
        if self.copies is not None:
            rows = inputs.numbers.add(_list_rows(inputs))
            # Tokens in float32 follow each other one by one, so that a text gets the same bits
            # however its tokens are spread over steps.
            if inputs.has_chunks and self._dtype.itemsize == 2:
                spans = [
                    inputs.numbers.add(np.array(each, dtype=np.int32))
                    for each in list_spans(rows.values.tolist())
                ]
        tiles = self._attention.cut(inputs)
        return replace(
            tiles,
            adapters=self.adapters.cut(inputs),
            rows=None if rows is None else rows.get(),
            spans=None if spans is None else Spans(*[each.get() for each in spans]),
        )

    def _compute(
        self,
        vectors: Tensor,
        step: LayerStep,
        deepstack: Tensor | None = None,
    ) -> Tensor:
        """Run the layers; returns (num_tokens, hidden_size), or (num_wanted, hidden_size)."""
        # A copy, because the layers add to it.
        hidden = vectors.to(self._dtype, copy=True)
        if self._parts.embedding_scale != 1.0:
            # Rounded as the modules round it.
            hidden *= torch.tensor(self._parts.embedding_scale, dtype=hidden.dtype)
        normed = self._layers[0].enter(hidden)
        num_added = 0 if deepstack is None else len(deepstack)
        pairs = zip(self._layers, (*self._layers[1:], None))
        for index, (layer, following) in enumerate(pairs):
            hidden, normed, step = layer.run(hidden, normed, step, following)
            if not len(hidden):
                break
            if deepstack is not None and index < num_added:
                hidden += deepstack[index]
                normed = hidden if following is None else following.enter(hidden)
        return hidden

    def _look_up(self, token_ids: Tensor, vectors: Tensor) -> Tensor | None:
        """Look up vectors of all layers, (num_tokens, num_layers, size), if they want some."""
        look_up = self._parts.look_up
        return None if look_up is None else look_up(token_ids, vectors)

    def _finish(self, hidden: Tensor, adapters: AdapterTiles | None) -> Tensor:
        """Return logits; the hidden states if the model's last layer is elsewhere."""
        parts, head = self._parts, self._head
        if head is None:
            return hidden
        assert parts.final_norm is not None, "it comes with the head"
        normed = normalize(hidden, parts.final_norm, parts.epsilon)
        assert normed is not None, "there is a norm"
        logits = head.multiply(normed)
        self.adapters.change(head, normed, logits, adapters)
        if parts.logit_softcap is not None:
            logits = torch.tanh(logits / parts.logit_softcap) * parts.logit_softcap
        return logits

    def _find_angles(self, vectors: Tensor, positions: Tensor) -> Angles | None:
        """Return the rotary angles of tokens that are not at their places."""
        if positions.dim() == 2:
            return None
        rotary: nn.Module | None = self._parts.plane_rotary
        assert rotary is not None, "the model places images in a plane"
        cos, sin = rotary(vectors[None], positions)
        return Angles(
            cos=cos[0].float().contiguous(),
            sin=sin[0].float().contiguous(),
            rows=torch.arange(len(vectors), device=vectors.device),
        )


def _list_tiles(inputs: StepInputs, index: NDArray[np.int64]) -> Numbers:
    """Return a tile of each of some tokens, which are alone then, in their order."""
    places, counts = np.arange(len(index)), np.ones(len(index))
    tiles = places, counts, inputs.slots[index], inputs.positions[index]
    return np.stack(tiles, axis=1).astype(np.int32)


def _list_rows(inputs: StepInputs) -> Numbers:
    return np.array(list_rows(inputs.rows, inputs.held), dtype=np.int32)


def _call(method: WeakMethod[Callable[[], None]]) -> None:
    function = method()
    assert function is not None, "adapters are added to layers that are there"
    function()


def _watch_memory(device: torch.device) -> Callable[[], bool]:
    """Return a function that tells whether half of the memory that is free now is left."""
    if device.type != "cuda":
        return lambda: True
    least = torch.cuda.mem_get_info(device)[0] // 2
    return lambda: torch.cuda.mem_get_info(device)[0] >= least
