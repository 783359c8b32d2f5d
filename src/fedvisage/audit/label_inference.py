"""Label inference from the gradients of a head; it succeeds on plain split learning.

O. Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, for a head at the site. With two
outputs, cross-entropy and a linear head W, the gradient with respect to the input of the head is (p − onehot(y)) W / N.
Its component along w₁ − w₀ is p₁ − y: negative for bona fide images and positive for attacks, however well the model is
trained. The server averages the heads, so it knows W. Without W, the gradients still lie on one line, with one class on
each side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedvisage.audit.finding import Audit, AuditedRun, Finding
from fedvisage.audit.wire_recorder import record_rounds, rounds_for
from fedvisage.federation.wire.precision import unpack

IMAGES = 256
"""Approximate number of images under attack."""


def by_the_head(gradients: Tensor, head: Tensor) -> Tensor:
    """Guess labels (1 = bona fide) from gradients, images × width, with the head's weights, classes × width."""
    return (gradients @ (head[1] - head[0]) < 0).long()


def without_the_head(gradients: Tensor) -> Tensor:
    """Split gradients into two groups by the side of their main direction; the groups' classes stay unknown."""
    direction = torch.linalg.svd(gradients, full_matrices=False).Vh[0]
    below: Tensor = gradients @ direction < 0
    return below.long()


def obstacle(subject: AuditedRun) -> str:
    """Report that the attack needs a method whose sites send the gradients of a head."""
    uploads = subject.method.calls["head"].uploads if "head" in subject.method.calls else ()
    return "" if any(upload.kind == "gradient" for upload in uploads) else "no gradients of a head cross the wire"


def attack(subject: AuditedRun) -> Finding:
    """Guess the labels of some batches of every site, and compare the guesses with the truth."""
    recording = record_rounds(subject, rounds_for(subject, IMAGES))
    head = subject.saved.finished["head.weight"].float()
    with_head, without_head, labels = [], [], []
    for answer in recording.of("head"):
        gradients = unpack("gradient", answer.message).float()
        truth = recording.truth(answer).labels.cpu().long()
        with_head.append(by_the_head(gradients, head) == truth)
        groups = without_the_head(gradients) == truth
        # Without the head the classes of the two groups are unknown; the better assignment counts.
        without_head.append(groups if groups.float().mean() >= 0.5 else ~groups)
        labels.append(truth)
    right, separated, share = (
        float(torch.cat(batches).float().mean()) for batches in (with_head, without_head, labels)
    )
    count = sum(map(len, labels))
    says = (
        f"A server that knows the head's average reads {100 * right:.1f} % of {count} labels off the "
        "gradients of the sites' heads; guessing the larger class would be right on "
        f"{100 * max(share, 1 - share):.1f} %."
    )
    numbers = {
        "labels_right": right,
        "classes_told_apart_without_head": separated,
        "share_of_larger_class": max(share, 1 - share),
        "images": float(count),
    }
    return Finding(says, numbers)


AUDIT = Audit("label-inference", "Labels from the gradients of heads", obstacle, attack)
