"""Describes stores as a dataset: a card for the Hub (README.md) and Croissant metadata (croissant.json).

Both describe the files of the stores, never an export (docs/decisions/0058). No local directory appears in them.
"""

from tokenmill.analysis.card.croissant import croissant
from tokenmill.analysis.card.public_facts import CardFields, PublicFacts
from tokenmill.analysis.card.readme import readme
from tokenmill.analysis.destinations import CARD, CROISSANT, card_destination

__all__ = ["CARD", "CROISSANT", "CardFields", "PublicFacts", "card_destination", "croissant", "readme"]
