"""The list of methods: one file a paper or baseline. A new method is a file here and a line in this list."""

from fedvisage.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.methods import (
    afl,
    centralised,
    colour_texture,
    conventional,
    depth_only,
    distillation,
    fedavg,
    fedavg_vit_h,
    fedbn,
    fedface,
    fedfr,
    fedgpad,
    fedma,
    fedpad,
    fedprox,
    fedprox_vit_h,
    fedsis,
    festa,
    fine_tune,
    fused,
    moon,
    moon_vit_h,
    pooled,
    pretrained,
    privacyface,
    privacyface_global,
    privacyface_local,
    privacyface_naive,
    privacyface_without_noise,
    single,
    vit,
    vit_h,
    vit_h_is,
)
from fedvisage.recipe import MethodOptions

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (
        *(single, fused, fedpad, fedprox, moon, afl, fedbn, fedgpad, fedma, pooled),
        *(colour_texture, depth_only),
        *(vit, vit_h, vit_h_is, fedavg_vit_h, fedprox_vit_h, moon_vit_h, festa, fedsis),
        *(pretrained, fedavg, fedface, fedfr, centralised, fine_tune, distillation),
        *(privacyface, conventional, privacyface_without_noise, privacyface_naive),
        *(privacyface_local, privacyface_global),
    )
}


def find(name: str) -> Method:
    """Return the method with this name."""
    if name not in METHODS:
        raise UserError("method", f"{name!r} is no method; choose one of {', '.join(sorted(METHODS))}")
    return METHODS[name]


def options() -> dict[str, type[MethodOptions]]:
    """Return every method's options, for recipes to be checked against."""
    return {name: method.options for name, method in METHODS.items()}
