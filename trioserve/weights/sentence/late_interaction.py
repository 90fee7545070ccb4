"""Reads the settings of late interaction from three kinds of folders.

    sentence-transformers   query_length, query_expansion, ... of the Transformer, and a
                            MultiVectorMask
    PyLate                  query_prefix, query_length, ... beside the prompts
    Stanford's ColBERT      artifact.metadata; no modules.json

Source: sentence-transformers 6.2, multi_vector_encoder/model.py, which reads all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
import string

from ...errors import UnsupportedModel
from ...types.sentence import QueryExpansion, SentenceFolder, SentenceModule
from .fields import Fields, read_fields
from .modules import Entry, read_modules, read_prompts, read_skipped_words
from .transformer import TransformerSettings, check_transformer, read_transformer

# Each of these fields shows that PyLate wrote the file.
_PYLATE_FIELDS = (
    *("query_length", "document_length", "query_expansion", "do_query_expansion"),
    *("attend_to_expansion_tokens", "attend_to_mask_tokens"),
    *("query_prefix", "document_prefix", "skiplist_words"),
)

# The defaults of the original ColBERT.
_EXPANDED_LENGTH = 32
_PUNCTUATION = tuple(string.punctuation)

_STANFORD_ARCHITECTURES = {"HF_ColBERT", "ColBERT"}


# The most tokens of a query and of a document, and the expansion of queries.
_Lengths = tuple[int | None, int | None, QueryExpansion | None]


def is_late_interaction(config: Fields) -> bool:
    """Return whether a folder without Pooling is one for late interaction."""
    if config.text("model_type") in ("MultiVectorEncoder", "ColBERT"):
        return True
    return any(field in config for field in _PYLATE_FIELDS)


def read_late_interaction(
    folder: Path, entries: Sequence[Entry], config: Fields
) -> SentenceFolder:
    """Read a folder of sentence-transformers or PyLate without a Pooling module.

    Args:
      entries: the entries of modules.json, with a Transformer first.
      config: config_sentence_transformers.json.

    Raises:
      WeightsBroken: the form of a file is wrong.
      UnsupportedModel: a module is not supported.
    """
    transformer = read_transformer(folder, entries[0].path)
    check_transformer(entries[0], transformer)
    masks = [entry for entry in entries[1:] if entry.kind == "MultiVectorMask"]
    others = [entry for entry in entries[1:] if entry.kind != "MultiVectorMask"]
    modules = read_modules(folder, others, "token_embeddings")
    skipped = read_skipped_words(folder, masks)
    is_pylate = config.text("model_type") != "MultiVectorEncoder"
    if is_pylate:
        # PyLate's class normalises, and has skipped words, without a module for them.
        modules += (SentenceModule(kind="normalize"),)
        skipped += _read_pylate_skipped(config)
    lengths = _read_lengths(transformer.fields, config)
    if lengths[2] is not None and not masks and not is_pylate:
        reason = "query_expansion has no effect without a MultiVectorMask"
        raise UnsupportedModel(entries[0].type, reason)
    prompts, default = read_prompts(config)
    prefixes = _read_prefixes(config)
    return replace(
        _start_folder(transformer, lengths),
        transformer_path=entries[0].path,
        modules=modules,
        prompts=_put_before(prefixes, prompts),
        default_prompt=default,
        skipped_words=skipped,
        special_words=_list_special_words(prefixes),
        averages_similarity=config.text("similarity_fn_name") == "meanmaxsim",
    )


def is_stanford(folder: Path) -> bool:
    """Return whether a folder has a checkpoint of Stanford's ColBERT."""
    config = read_fields(folder, "config.json")
    names = config.texts("architectures") if config is not None else None
    return bool(_STANFORD_ARCHITECTURES & set(names or ()))


def read_stanford(folder: Path) -> SentenceFolder:
    """Read a checkpoint of Stanford's ColBERT; without artifact.metadata, its defaults.

    Raises:
      WeightsBroken: the form of a file is wrong.
    """
    name = "artifact.metadata"
    metadata = read_fields(folder, name) or Fields({}, folder, name)
    prefixes = {
        "query": f"{metadata.text('query_token_id') or '[unused0]'} ",
        "document": f"{metadata.text('doc_token_id') or '[unused1]'} ",
    }
    expansion = QueryExpansion(
        length=metadata.count("query_maxlen") or _EXPANDED_LENGTH,
        is_seen=metadata.flag("attend_to_mask_tokens") or False,
    )
    lengths = (None, metadata.count("doc_maxlen"), expansion)
    keeps_punctuation = metadata.flag("mask_punctuation") is False
    return replace(
        _start_folder(read_transformer(folder, ""), lengths),
        modules=(SentenceModule(kind="normalize"),),
        prompts=prefixes,
        skipped_words=() if keeps_punctuation else _PUNCTUATION,
        special_words=_list_special_words(prefixes),
    )


def _read_pylate_skipped(config: Fields) -> tuple[str, ...]:
    words = config.texts("skiplist_words")
    return _PUNCTUATION if words is None else words


def _read_prefixes(config: Fields) -> dict[str, str]:
    """Read PyLate's prefixes of texts; they become special words of the tokenizer."""
    named = {"query": "query_prefix", "document": "document_prefix"}
    return {
        kind: config.text(field) or ""
        for kind, field in named.items()
        if field in config
    }


def _put_before(
    prefixes: Mapping[str, str], prompts: Mapping[str, str]
) -> dict[str, str]:
    composed = {
        kind: prefix + prompts.get(kind, "").removeprefix(prefix)
        for kind, prefix in prefixes.items()
    }
    return {**prompts, **composed}


def _list_special_words(prefixes: Mapping[str, str]) -> tuple[str, ...]:
    # PyLate saves "[Q] " with the space as one token, Stanford "[unused0]" without it.
    words = [
        word
        for prefix in prefixes.values()
        if prefix.split()
        for word in (prefix, prefix.split()[0])
    ]
    return tuple(dict.fromkeys(words))


def _read_lengths(own: Fields, config: Fields) -> _Lengths:
    """Read lengths from the transformer's own file, and missing ones from PyLate's."""
    query = own.count("query_length") or config.count("query_length")
    if "query_expansion" in own:
        expansion = _read_expansion(own)
    elif "query_expansion" in config:
        expansion = _read_expansion(config)
    else:
        expansion = _read_pylate_expansion(config)
        if expansion is not None and own.count("query_length") is None:
            # PyLate's query_length is the length of the expanded query.
            query = None
    if expansion is not None and query is not None and query < expansion.length:
        raise own.make_error(
            "has a 'query_length' below the length of 'query_expansion'"
        )
    document = own.count("document_length") or config.count("document_length")
    return query, document, expansion


def _read_expansion(fields: Fields) -> QueryExpansion | None:
    expansion = fields.object("query_expansion")
    if expansion is None:
        return None
    length = expansion.count("length")
    strategy = expansion.text("strategy")
    if length is None or strategy not in ("fixed", "min"):
        raise expansion.make_error("needs a 'length' and a 'strategy', fixed or min")
    return QueryExpansion(
        length=length,
        is_limit=strategy == "fixed",
        token=expansion.text("token"),
        is_seen=expansion.flag("attend") or False,
    )


def _read_pylate_expansion(config: Fields) -> QueryExpansion | None:
    is_pylate = any(field in config for field in _PYLATE_FIELDS)
    if not is_pylate or config.flag("do_query_expansion") is False:
        return None
    # The second one is Stanford's name, which occurs in files that were written by
    # hand.
    names = ("attend_to_expansion_tokens", "attend_to_mask_tokens")
    is_seen = config.flag(next((name for name in names if name in config), names[0]))
    return QueryExpansion(
        length=config.count("query_length") or _EXPANDED_LENGTH,
        is_seen=is_seen or False,
    )


def _start_folder(
    transformer: TransformerSettings, lengths: _Lengths
) -> SentenceFolder:
    limit = transformer.max_length
    query, document, expansion = lengths[0] or limit, lengths[1] or limit, lengths[2]
    expanded = expansion.length if expansion is not None else None
    known = [length for length in (query, document, expanded) if length is not None]
    return SentenceFolder(
        # The limit of a kind of text has precedence over the limit of all texts.
        max_seq_length=None if limit is None else max(limit, *known),
        lowercases=transformer.lowercases,
        query_length=query,
        document_length=document,
        query_expansion=expansion,
    )
