"""The part of the spec in force that concerns one model's scaling: from the deployment at first, from the whole spec
once one is applied."""

import json
import logging

from autoscaling.from_spec import ScalingSetup, setup_of
from cluster.spec import ClusterSpec, Model, Region
from deployments.engine_model.cost_file import CostFile, CostFileError

log = logging.getLogger("raylane.scaling")


class ModelFacts:
    """`model`: by its `Model.group_key`; `groups`: all groups of the model in the region, this one among them.
    `estimate`: the content of a cost file for a model that names none, or empty. Raises ValueError if the first spec
    has no such model or region, or no usable settings, and for an estimate that is no cost file."""

    def __init__(self, spec_json: str, model: str, region: str, estimate: str = "") -> None:
        self.bad = False
        """Whether the spec in force cannot be followed completely."""
        self._names = (model, region)
        self._estimate = CostFile.model_validate_json(estimate) if estimate else None
        self._json: str | None = spec_json
        self.spec, self.model, self.region, self.setup = self._read(spec_json)
        self.groups = self._groups()

    def follow(self, spec_json: str | None) -> bool:
        """Takes the directory's spec (None: none was applied) and returns whether anything has changed."""
        if spec_json is None or spec_json == self._json:
            return False
        self._json = spec_json
        try:
            self.spec, self.model, self.region, self.setup = self._read(spec_json)
            self.groups = self._groups()
        except ValueError as error:  # of pydantic, or of a policy's settings
            log.error("the spec in force cannot be followed for model %s: %s", self._names[0], error)
            self.bad = True
            return False
        return True

    def _groups(self) -> tuple[Model, ...]:
        return self.spec.groups_of(self.spec.model(self.model.name), self.region)

    def _read(self, spec_json: str) -> tuple[ClusterSpec, Model, Region, ScalingSetup]:
        spec = ClusterSpec.model_validate(json.loads(spec_json))
        name, region_name = self._names
        model, region = spec.view(name), spec.region(region_name)
        setup = self._setup(spec, model, region)
        for choice in (setup.policy, setup.shadow):
            if choice is not None:
                choice.make(setup.replica_profile)  # what cannot be made is not followed
        return spec, model, region, setup

    def _setup(self, spec: ClusterSpec, model: Model, region: Region) -> ScalingSetup:
        self.bad = False
        try:
            return setup_of(spec, model, region, self._estimate if spec.costs_of(model) is None else None)
        except CostFileError as error:  # a policy can do without
            log.error("model %s is scaled without its costs: %s", model.group_key, error)
            self.bad = True
            return setup_of(spec, model, region, read_costs=False)
