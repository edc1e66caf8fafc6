"""The twin of a cell, put together from its files: body, reduced model, and what estimates it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from realsimloop_ros.body.body import Body, InvalidBodyError
from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.estimator_file import EstimatorFile, load_estimator_file
from realsimloop_ros.estimation.theta import ParameterSpace
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.observation.cell_file import CellFile
from realsimloop_ros.reduction.cubature_checks import FittedRange
from realsimloop_ros.reduction.model import ReducedModel, load_reduced_body


@dataclass(frozen=True, eq=False)
class Twin:
    """body and model, how they are stepped, and what is estimated of them; fitted: the latent states that the
    model was fitted to, none where its card does not say."""

    body: Body
    model: ReducedModel
    step: StepSettings
    space: ParameterSpace
    file: EstimatorFile
    fitted: FittedRange | None = None

    def estimator(self, *, wrenches: bool = True) -> TwinEstimator:
        """A fresh estimator of this twin, starting in static equilibrium at the first grip poses it is given.

        wrenches: False where none will come although the estimator file speaks of them.
        """
        track = Track(
            self.body,
            self.model,
            self.step,
            self.file.likelihoods(self.body),
            wrench_likelihood=self.file.wrench_likelihood() if wrenches else None,
        )
        return TwinEstimator([track], self.space, self.file.estimator_settings())


def load_twin(cell: CellFile) -> Twin:
    """Read the reduced model and the estimator file that a cell names.

    Raises the readers' errors, and InvalidBodyError where the model's grips are not those of the cell.
    """
    path = cell.resolve(cell.reduced_model)
    reduced = load_reduced_body(path)
    frames = {grip.name: grip.frame for grip in reduced.body.grips}
    wanted = {grip.name: grip.frame for grip in cell.grips}
    if frames != wanted:
        raise InvalidBodyError(
            f"grips: {path} has {frames}, but cell {cell.name} has {wanted}; name the same ones"
        )
    file = load_estimator_file(cell.resolve(cell.estimator))
    model, space = reduced.model(dtype=file.dtype), file.parameter_space(reduced.body)
    fitted = FittedRange.from_card(reduced.card["range"]) if "range" in reduced.card else None
    return Twin(reduced.body, model, file.step_settings(), space, file, fitted)


def with_prior(twin: Twin, youngs_modulus_factor: float) -> Twin:
    """The same twin starting from Young's moduli multiplied by a factor: for studies of wrong starts."""
    prior = twin.space.prior._replace(youngs_modulus=twin.space.prior.youngs_modulus * youngs_modulus_factor)
    return replace(twin, space=replace(twin.space, prior=prior))
