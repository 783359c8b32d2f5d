"""Label inference from a head's gradients: it succeeds on plain split learning.

O. Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, for a head at the site. With two
outputs, cross-entropy and a linear head W, the gradient by what the head saw is (p − onehot(y)) W / N. Its part along
w₁ − w₀ is p₁ − y: below 0 for bona fide images, above for attacks, however well the model is trained. The server
averages the heads, so it knows W; and without it, the gradients still lie on one line, one class on either side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedvisage.audit.finding import Audit, Finding, Subject
from fedvisage.audit.wire_recorder import overhear, rounds_for
from fedvisage.federation.wire.precision import unpack

IMAGES = 256
"""About so many images are looked at."""


def by_the_head(gradients: Tensor, head: Tensor) -> Tensor:
    """Guess labels (1 = bona fide) from gradients, images × width, with the head's weights, classes × width."""
    return (gradients @ (head[1] - head[0]) < 0).long()


def without_the_head(gradients: Tensor) -> Tensor:
    """Guess two groups from the side of their main direction on which gradients lie; which is which stays open."""
    main = torch.linalg.svd(gradients, full_matrices=False).Vh[0]
    below: Tensor = gradients @ main < 0
    return below.long()


def obstacle(subject: Subject) -> str:
    """Only methods with a head at the sites send its gradients."""
    uploads = subject.method.calls["head"].uploads if "head" in subject.method.calls else ()
    return "" if any(upload.kind == "gradient" for upload in uploads) else "no gradients of a head cross the wire"


def attack(subject: Subject) -> Finding:
    """Guess the labels of some batches of every site, and compare with the truth."""
    heard = overhear(subject, rounds_for(subject, IMAGES))
    head = subject.saved.finished["head.weight"].float()
    known, blind, labels = [], [], []
    for answer in heard.of("head"):
        gradients = unpack("gradient", answer.message).float()
        truth = heard.truth(answer).labels.cpu().long()
        known.append(by_the_head(gradients, head) == truth)
        groups = without_the_head(gradients) == truth
        blind.append(groups if groups.float().mean() >= 0.5 else ~groups)
        labels.append(truth)
    right, apart, share = (float(torch.cat(batches).float().mean()) for batches in (known, blind, labels))
    count = sum(map(len, labels))
    says = (
        f"A server that knows the head's average reads {100 * right:.1f} % of {count} labels off the gradients of the "
        f"sites' heads; by guessing the larger class it would be right on {100 * max(share, 1 - share):.1f} %."
    )
    numbers = {
        "labels_right": right,
        "classes_told_apart_without_head": apart,
        "share_of_larger_class": max(share, 1 - share),
        "images": float(count),
    }
    return Finding(says, numbers)


AUDIT = Audit("label-inference", "Labels from the gradients of heads", obstacle, attack)
