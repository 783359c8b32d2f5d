"""Checks before a run: protections that a method supports, and protections that exclude each other."""

from __future__ import annotations

from fedvisage.base.errors import UserError
from fedvisage.federation.method import PEOPLE, Home, Method
from fedvisage.federation.protections.dp import account_of
from fedvisage.federation.wire.schema import COST, SUMMED
from fedvisage.metrics.threshold import ON_TRAINING
from fedvisage.recipe import Federation, Recipe, Secure
from fedvisage.recipe.federation import LEAST_SHARE


def check_protection(recipe: Recipe, method: Method) -> None:
    """Raise an error for protections that the method, its weighting of sites, or another protection would defeat."""
    federation = recipe.federation
    requested = [*protections_of_mean(federation), *(["poisoned"] if federation.poisoned is not None else [])]
    # Protections of uploads need a method that averages; noise may also have its own account with the method.
    for key in requested:
        if not ("one_mean" in method.supports or (key == "dp" and method.release_costs is not None)):
            raise UserError(
                f"recipe.federation.{key}",
                f"requires a method that averages all uploads, and {method.name} does not; leave it out, or use an "
                "averaging method (`fedvisage methods NAME` shows which)",
            )
        _refuse_uploads(uploads_beside_mean(method, releases=key == "dp"), f"federation.{key}", method)
    if federation.wire != "fp32":
        place = "recipe.federation.wire"
        if federation.secure is not None:
            raise UserError(place, "bf16 compresses weights, but federation.secure sends masked integers; leave it out")
        if federation.dp is not None:  # rounding must not change the norm of an update
            raise UserError(place, "bf16 rounds an update after federation.dp has clipped it; leave it out")
    if recipe.training.statistics == "exact":
        # Exact statistics would bypass secure sums or noise, and a robust rule would weigh them.
        fault, place = "exact statistics are sent", "recipe.training.statistics"
        if requested:
            conflict = f"conflicts with federation.{min(requested)}; use one of the two"
            raise UserError(place, f"{fault} unprotected by each site, which {conflict}")
        if method.noised(recipe) or method.releases:
            remedy = f"although {method.name} adds noise to what it releases; leave it out"
            raise UserError(place, f"{fault} without noise, {remedy}")
    if federation.secure is not None:
        _check_secure(recipe, federation.secure)
    if "combine" in requested:
        # Settings that hide uploads from a robust rule, or let a claimed weight outweigh it.
        place, rule = "recipe.federation.combine", federation.combine.rule
        if federation.secure is not None:
            raise UserError(place, f"{rule} needs single uploads, which federation.secure hides; use one of the two")
        if weighs_by_examples(recipe):
            reason = "because a hostile site could inflate its number of examples; set method.weight: uniform"
            raise UserError(place, f"{rule} weights all sites equally, {reason}")
    if "dp" in requested:
        _check_noise(recipe, method)
    if recipe.training.privacy is not None:
        _check_people(recipe, method)
        _refuse_training_figures(recipe, "training.privacy")
    elif method.noised(recipe):
        _refuse_training_figures(recipe, f"the noise of {method.name}")


def protections_of_mean(federation: Federation) -> list[str]:
    """Return the requested protections that cover one mean of all uploads, and no single upload."""
    requested = [key for key in ("secure", "dp") if getattr(federation, key) is not None]
    return ["combine", *requested] if federation.combine.rule != "mean" else requested


def check_request(recipe: Recipe, call: str, request: str) -> None:
    """Raise an error for a request of uploads, other than their mean, if a protection covers their mean only."""
    if call == SUMMED and (keys := protections_of_mean(recipe.federation)):
        fault = f"covers one mean of all uploads of {call}, and {recipe.method.name} requests {request}; leave it out"
        raise UserError(f"recipe.federation.{keys[0]}", f"{fault}, or use s.reduce with averaging.weight_of(s.recipe)")


def uploads_beside_mean(method: Method, *, releases: bool = False) -> list[str]:
    """Return the uploads that no protection of the mean covers; with ``releases`` an account covers those, too."""
    # Single numbers beside the weights, such as a count or a loss, do not reach the server's program.
    return [
        upload.name
        for name, call in method.calls.items()
        for upload in call.uploads
        if (name != SUMMED or upload.prefix or upload.shape != () or bool(upload.parts) == (upload.kind == "statistic"))
        and not (releases and call.release_costs is not None and (upload.kind == "dp" or upload == COST))
    ]


def _refuse_uploads(names: list[str], key: str, method: Method) -> None:
    if names:
        fault = f"covers the weights that {method.name} sends in {SUMMED}, but not {', '.join(names)}; leave it out"
        raise UserError(f"recipe.{key}", fault)


def _check_secure(recipe: Recipe, secure: Secure) -> None:
    """Raise an error for secure sums over changing groups of sites, and for too low or unreachable thresholds."""
    place, site_count = "recipe.federation.secure", recipe.federation.asks(len(recipe.data.sites))
    if recipe.federation.participation < 1:
        raise UserError(
            "recipe.federation.participation",
            "samples different sites in each round, and differences between sums over different sites reveal "
            "single uploads; leave it out, or leave federation.secure out",
        )
    if secure.threshold is not None and secure.threshold < LEAST_SHARE:
        raise UserError(
            f"{place}.threshold", f"{secure.threshold:g} is less than two thirds of the sites; leave it out"
        )
    if secure.sites_needed(site_count) > site_count:
        raise UserError(
            f"{place}.colluders",
            f"with {secure.colluders} of {site_count} sites colluding with the server, a sum hides nothing; set a "
            "lower number",
        )


def _check_noise(recipe: Recipe, method: Method) -> None:
    """Raise an error for settings that break the guarantee of noise, or add a second guarantee."""
    place = "recipe.federation.dp"
    lent = method.parts_at(Home.LENT)
    if recipe.federation.combine.rule != "mean":
        raise UserError(place, "requires the mean of clipped updates; leave federation.combine out")
    if weighs_by_examples(recipe):
        raise UserError(
            place,
            "requires equal weights, because a site's number of examples has no bound; set method.weight: uniform",
        )
    if method.releases != sum(call.release_costs is not None for call in method.calls.values()):
        raise UserError(place, f"and the releases of {method.name} cannot be accounted together; leave it out")
    if (account := account_of(recipe, method)) is not None:
        account.charges(1)  # raises an error for settings that no joint account covers
    if recipe.evaluation.keep == "best" or recipe.training.early_stop is not None:
        raise UserError(place, "does not cover choosing a round by held-out images; use keep: last, without early_stop")
    site_parts = [part for upload in method.calls[SUMMED].uploads for part in upload.parts if part not in lent]
    if site_parts:
        raise UserError(
            place, f"clips a site's change to the shared parts, but {site_parts[0]} stays at the site; leave it out"
        )


def _check_people(recipe: Recipe, method: Method) -> None:
    """Raise an error for settings under which the noise of ``training.privacy`` would not protect people."""
    training, federation = recipe.training, recipe.federation
    refusals = (
        (
            PEOPLE not in method.supports,
            "training.privacy",
            f"requires averaging in attack detection, with a loss that is a mean over images, unlike {method.name} "
            "here; leave it out, or use fedavg, fedprox, fedadam, fedyogi or mrmtl on a model of attack detection",
        ),
        (
            training.local.batches is None,
            "training.local",
            "needs batches with training.privacy: the number of steps in epochs reveals a site's number of images",
        ),
        (
            training.sampling != "shuffled",
            "training.sampling",
            "does not apply to training.privacy, whose steps draw people; leave it out",
        ),
        (
            training.optimizer.state == "kept",
            "training.optimizer.state",
            "must be fresh with training.privacy: a repeated visit sends its stored weights, without the state",
        ),
        (
            weighs_by_examples(recipe),
            "method.weight",
            "must be uniform with training.privacy: a site's number of images is not sent",
        ),
        (
            recipe.privacy.epsilon is not None,
            "privacy.epsilon",
            "is the budget of other releases; training.privacy has its own; leave epsilon and delta out",
        ),
        (
            federation.secure is not None or federation.dp is not None,
            "training.privacy",
            "excludes federation.secure and federation.dp; leave them out",
        ),
    )
    for applies, place, fault in refusals:
        if applies:
            raise UserError(f"recipe.{place}", fault)
    numbers = [upload for upload in method.calls[SUMMED].uploads if not upload.parts]
    sent = [upload.name for upload in numbers if upload.left_out is None or not upload.left_out(recipe)]
    _refuse_uploads(uploads_beside_mean(method) + sent, "training.privacy", method)


def _refuse_training_figures(recipe: Recipe, protection: str) -> None:
    """Raise an error for evaluations that send figures of training images without noise, beside a protection."""
    evaluation, scores = recipe.evaluation, "counts of training scores"
    for key, applies, sent, remedy in (
        ("threshold", evaluation.threshold == ON_TRAINING, scores, "use source-eer, on held-out people"),
        ("published", bool(evaluation.published), scores, "leave it out"),
        ("shortcuts", bool(evaluation.shortcuts), "properties of training images", "leave it out"),
    ):
        if applies:
            fault = f"sends {sent} without noise, beside {protection}; {remedy}"
            raise UserError(f"recipe.evaluation.{key}", fault)


def check_real(recipe: Recipe) -> None:
    """Raise an error for features of simulations: intended attacks, and secrets or noise derived from the seed.

    Sites run this check themselves, with the conditions of safe secure sums, because an operator can omit its own
    check.
    """
    federation = recipe.federation
    if federation.secure is not None:
        _check_secure(recipe, federation.secure)
        for key in ("joins", "offline"):
            if getattr(federation, key):
                raise UserError(
                    f"recipe.federation.{key}",
                    "excludes sites from some sums, and differences between sums over different sites reveal single "
                    "uploads; leave it out, or leave federation.secure out",
                )
    if federation.poisoned is not None:
        raise UserError("recipe.federation.poisoned", "simulates attacks and works only in a simulation; leave it out")
    entropies = {
        "federation.secure.entropy": federation.secure and federation.secure.entropy,
        "federation.dp.entropy": federation.dp and federation.dp.entropy,
        "privacy.noise": recipe.privacy.noise,
    }
    for key, entropy in entropies.items():
        if entropy == "derived":
            raise UserError(
                f"recipe.{key}", "noise derived from the recipe protects nobody between organisations; use system"
            )


def weighs_by_examples(recipe: Recipe) -> bool:
    """Return whether the recipe's method weights sites by their number of images."""
    return getattr(recipe.method, "weight", "uniform") == "examples"
