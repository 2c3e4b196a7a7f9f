"""Cells that help each other: digests, hand-over, residency. Pure: no clock, no I/O, no Ray, vLLM or HTTP."""

from deployments.peering.cell_peering import CellPeering, Offer
from deployments.peering.decision import HandOver, Home, Stay, decide, remaining_s
from deployments.peering.digest import Digest, LaneDigest, ModelDigest, Question, Received, model_digest
from deployments.peering.peers import Footprint, HandedOver, KnownPeers, PeerView
from deployments.peering.reasons import DigestRefusal, HandOverReason, HopRefusal, StayReason
from deployments.peering.reception import Here, HopFacts, Reception
from deployments.peering.rules import Allowed, Rules
