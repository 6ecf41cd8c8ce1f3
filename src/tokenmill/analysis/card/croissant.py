"""Croissant 1.1 metadata of stores: JSON-LD with their files and sources."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tokenmill.analysis.card.public_facts import CardFields, PublicFacts, PublicSource
from tokenmill.humanize import escape_control_characters
from tokenmill.storage import scheme
from tokenmill.store import layout

VERSION = "http://mlcommons.org/croissant/1.1"

MEDIA_TYPES = {
    "arrow": "application/vnd.apache.arrow.file",
    "json": "application/json",
    "parquet": "application/x-parquet",
    "tiktoken": "text/plain",
}

# Terms of the Croissant vocabulary without a prefix, as the specification and mlcroissant list them.
_TERMS = (
    "annotation arrayShape citeAs column containedIn equivalentProperty excludes extract field fileProperty fileObject"
    " fileSet format includes isArray isLiveDataset jsonPath key md5 parentField path readLines recordSet references"
    " regex repeated replace samplingRate sdVersion separator source subField transform unArchive value"
)
# The specification writes http://schema.org/, but mlcroissant 1.1 accepts only https.
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}


def croissant(facts: PublicFacts, fields: CardFields) -> dict[str, Any]:
    """The metadata as JSON-LD. Properties that a person has not given are absent."""
    given = {
        "license": fields.license,
        "url": fields.url,
        "creator": fields.creator and {"@type": "sc:Organization", "name": fields.creator},
        "datePublished": fields.published,
    }
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": VERSION,
        "name": fields.name or facts.default_name,
        "description": fields.description or facts.summary,
        **{name: value for name, value in given.items() if value},
        "keywords": ["tokenized text", "language modeling", f"tokenizer: {facts.tokenizer}"],
        "distribution": _distribution(facts),
        "prov:wasDerivedFrom": _derived_from(facts),
        "prov:wasGeneratedBy": _generated_by(facts),
    }


def _distribution(facts: PublicFacts) -> list[dict[str, Any]]:
    """The files that a store is read from. Logs, quarantined rows and lists of denied rows are not among them."""
    entries: list[dict[str, Any]] = []
    for prefix, member, files in facts.files:
        entries += [
            {
                "@type": "cr:FileObject",
                "@id": file.name,
                "name": file.name,
                "contentUrl": quote(file.name),
                "contentSize": f"{file.size} B",
                "encodingFormat": MEDIA_TYPES[file.kind],
                "sha256": file.sha256,
            }
            for file in files
        ]
        kept = ", ".join(member.run.job.keep)
        entries.append(
            _file_set(prefix, layout.PARTS, "arrow", "The tokens. The manifest has the checksum of each file.")
        )
        if kept:
            entries.append(_file_set(prefix, layout.KEPT, "parquet", f"Columns of the sources, by document: {kept}."))
    return entries


def _file_set(prefix: str, directory: str, kind: str, description: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": f"{prefix}{directory}",
        "description": description,
        "includes": f"{prefix}{directory}/*.{kind}",
        "encodingFormat": MEDIA_TYPES[kind],
    }


def _derived_from(facts: PublicFacts) -> list[dict[str, Any]]:
    """The datasets of the Hub, the sources, and what is not listed one by one."""
    entities: list[dict[str, Any]] = [
        {"@type": "prov:Entity", "@id": quote(address, safe=":/@"), "prov:label": name}
        for address, name in facts.hub_datasets.items()
    ]
    sources = [_source(source) for source in facts.sources()]
    unlisted = facts.stores.source_count - len(sources)
    if unlisted:
        label = f"{unlisted:,} more sources, in the tables of sources of the stores"
        sources.append({"@type": "prov:Entity", "@id": "sources/others", "prov:label": label})
    return entities + sources


def _source(source: PublicSource) -> dict[str, Any]:
    is_address = bool(scheme(source.name))
    entity: dict[str, Any] = {
        "@type": "prov:Entity",
        "@id": f"sources/{source.number}",
        "prov:label": escape_control_characters(source.name),
        "contentSize": f"{source.size} B",
    }
    if is_address:
        entity["prov:atLocation"] = quote(source.name, safe=":/@")
    if source.sha256:
        entity["sha256"] = source.sha256
    entity["identifier"] = [
        {"@type": "sc:PropertyValue", "propertyID": kind, "sc:value": value} for kind, value in source.hashes.items()
    ]
    return entity


def _generated_by(facts: PublicFacts) -> dict[str, Any]:
    """The run: tokenmill with its version, the vocabulary, and the lists of denied rows by their hashes."""
    spec, versions = facts.stores.job.tokenizer, facts.stores.members[0].run.versions
    used = [{"@type": "prov:Entity", "@id": "tokenizer", "prov:label": facts.tokenizer, "sha256": spec.sha256}]
    used += [
        {"@type": "prov:Entity", "@id": f"deny/{blake3}", "prov:label": "list of denied rows"}
        for blake3 in facts.deny_lists
    ]
    return {
        "@type": "prov:Activity",
        "prov:label": "tokenmill prepare",
        "prov:used": used,
        "prov:wasAssociatedWith": {
            "@type": "prov:SoftwareAgent",
            "prov:label": f"tokenmill {versions.get('tokenmill', '')}".strip(),
        },
    }
